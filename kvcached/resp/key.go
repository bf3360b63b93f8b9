package resp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
)

// key is an argument that names a block.
type key struct {
	addr      block.Addr
	namespace string
	name      []byte     // nil: a block address
	tail      block.Tail // of a block address, for its writer
}

// item describes a value of the key to the store.
func (k key) item() store.Item {
	return store.Item{Addr: k.addr, Namespace: k.namespace, Key: k.name, Parent: k.tail.Parent,
		Attr: block.AppendNames(nil, k.tail.Names)}
}

// resolve finds the block that a name means for this client. refused says why the client may not
// use it.
func (c *conn) resolve(name []byte) (k key, refused string) {
	most := block.MaxKey
	if block.IsAddress(name) {
		most = block.MaxAddress
	}
	if len(name) > most {
		return key{}, fmt.Sprintf("ERR a key has %d bytes, at most %d are allowed", len(name), most)
	}
	if !block.IsAddress(name) {
		c.server.o.Store.Know(c.namespace)
		return key{addr: block.OfKey(c.model, name), namespace: c.namespace, name: name}, ""
	}
	namespace, addr, tail, err := block.ParseText(name)
	if err != nil {
		return key{}, "ERR " + err.Error()
	}
	if c.user != nil {
		n, err := block.ParseNamespace(namespace)
		if err != nil || n.Tenant != c.user.Tenant {
			refused = "NOPERM the block address is of another tenant"
			c.refuses(reasonDenied, refused, c.userName())
			return key{}, refused
		}
	}
	c.server.o.Store.Know(namespace)
	return key{addr: addr, namespace: namespace, tail: tail}, ""
}

// key resolves argument i. If it returns false, it has replied an error.
func (c *conn) key(i int) (key, bool) {
	k, refused := c.resolve(c.args[i])
	if refused != "" {
		c.fail(refused)
	}
	return k, refused == ""
}

// keysFrom resolves every step-th argument into c.keys and c.addrs, beginning with first. If it
// returns false, it has replied an error.
func (c *conn) keysFrom(first, step int) bool {
	c.keys, c.addrs = c.keys[:0], c.addrs[:0]
	for i := first; i < len(c.args); i += step {
		k, ok := c.key(i)
		if !ok {
			return false
		}
		c.keys, c.addrs = append(c.keys, k), append(c.addrs, k.addr)
	}
	return true
}

// statAll fills c.infos for c.addrs. If it returns false, it has replied an error.
func (c *conn) statAll() bool {
	if cap(c.infos) < len(c.addrs) {
		c.infos = make([]store.Info, len(c.addrs))
	}
	c.infos = c.infos[:len(c.addrs)]
	clear(c.infos)
	if err := c.server.o.Store.StatAll(c.server.ctx, c.addrs, c.infos); err != nil {
		c.fail(c.storeError(err))
		return false
	}
	return true
}

// stat finds one block. If ok is false, it has replied an error.
func (c *conn) stat(k key) (info store.Info, found, ok bool) {
	info, err := c.server.o.Store.Stat(c.server.ctx, k.addr)
	switch {
	case err == nil:
		return info, true, true
	case errors.Is(err, store.ErrMiss):
		return store.Info{}, false, true
	}
	c.fail(c.storeError(err))
	return store.Info{}, false, false
}

// fetch gets a block; nil is a miss. Every error is a miss, because some clients give up at an
// error.
func (c *conn) fetch(k key) *store.Block {
	b, err := c.server.o.Store.Get(c.server.ctx, k.addr)
	if err == nil {
		c.server.counters.hits.Add(1)
		return b
	}
	c.server.counters.misses.Add(1)
	if !errors.Is(err, store.ErrMiss) {
		c.server.counters.readFailures.Add(1)
	}
	return nil
}

// answer replies a block and releases it; nil is a miss.
func (c *conn) answer(b *store.Block) {
	if b == nil {
		c.null()
		return
	}
	c.payload(b.Bytes())
	b.Release()
}

// storeError counts an error of the store and returns its text for the client.
func (c *conn) storeError(err error) string {
	var size *store.SizeError
	switch {
	case errors.Is(err, store.ErrFull):
		c.server.counters.full.Add(1)
		return "OOM command not allowed when used memory > 'maxmemory'."
	case errors.Is(err, store.ErrQuota):
		c.server.counters.full.Add(1)
		return "OOM command not allowed when the quota of its namespace is used up."
	case errors.As(err, &size):
		return "ERR " + strings.TrimPrefix(size.Error(), "store: ")
	case errors.Is(err, store.ErrTooLarge):
		return "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
	case errors.Is(err, store.ErrClosed):
		return "ERR the server is shutting down"
	}
	if hosts := (*purge.HostsError)(nil); errors.As(err, &hosts) {
		c.server.counters.hostsFailures.Add(1)
		return "ERR " + hosts.Public()
	}
	if refused := purge.Refused(""); errors.As(err, &refused) {
		c.server.counters.hostsFailures.Add(1)
		return "ERR " + refused.Error()
	}
	c.server.counters.storeFailures.Add(1)
	if c.server.logs.store.due() {
		c.server.o.Logger.Error("the store failed a RESP client", "error", err)
	}
	return "ERR the store failed"
}
