package resp

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// locks make commands that read and then write one key, as GETSET and SET XX do, atomic among RESP
// clients: who writes a key holds it. A plain SET or DEL does, too: the store orders single writes,
// but between what a GETSET reads and what it writes none may come. A key is held for as long as
// other hosts and the SSD take; only commands on the same key wait, in the order in which they
// came.
type locks struct {
	mu sync.Mutex // never held while something is waited for
	// held are the keys of commands under way, at most half of MaxArgs of each client, each with
	// those who wait, at most MaxClients.
	held  map[block.Addr][]chan struct{}
	most  int    // in held since it was made: a map does not shrink
	waits uint64 // that there have been
}

// keptLocks is how large a map of locks may have grown to be kept when it is empty.
const keptLocks = 1 << 12

// acquire waits for a key. Unless it fails, with ctx's error, the key must be released.
func (l *locks) acquire(ctx context.Context, a block.Addr) error {
	l.mu.Lock()
	queue, taken := l.held[a]
	if !taken {
		if l.held == nil {
			l.held = map[block.Addr][]chan struct{}{}
		}
		l.held[a] = nil
		l.most = max(l.most, len(l.held))
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.held[a] = append(queue, turn)
	l.waits++
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.held[a], turn); i >= 0 {
		l.held[a] = slices.Delete(l.held[a], i, i+1)
	} else {
		l.pass(a) // it was this one's turn just now
	}
	return ctx.Err()
}

// release gives a key to who has waited longest.
func (l *locks) release(a block.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(a)
}

// pass is release with mu held.
func (l *locks) pass(a block.Addr) {
	if queue := l.held[a]; len(queue) > 0 {
		close(queue[0])
		l.held[a] = queue[1:]
		return
	}
	delete(l.held, a)
	if len(l.held) == 0 && l.most > keptLocks {
		l.held, l.most = nil, 0
	}
}

func (l *locks) stats() (held int64, waits uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.held)), l.waits
}

// lock makes the client the only one that writes the key, until unlock. False: the server is being
// closed, and the client has been told.
func (c *conn) lock(k key) bool {
	if c.server.locks.acquire(c.server.ctx, k.addr) == nil {
		return true
	}
	c.fail(c.storeError(store.ErrClosed))
	return false
}

func (c *conn) unlock(k key) { c.server.locks.release(k.addr) }

// lockAll is lock for all of c.addrs, one after the other in an order that is the same for all
// clients, so that none wait for each other.
func (c *conn) lockAll() (unlock func(), ok bool) {
	addrs := slices.Clone(c.addrs)
	slices.SortFunc(addrs, compareAddrs)
	addrs = slices.Compact(addrs)
	for i, a := range addrs {
		if !c.lock(key{addr: a}) {
			c.unlockAll(addrs[:i])
			return nil, false
		}
	}
	return func() { c.unlockAll(addrs) }, true
}

func (c *conn) unlockAll(addrs []block.Addr) {
	for _, a := range addrs {
		c.server.locks.release(a)
	}
}

func compareAddrs(a, b block.Addr) int {
	return cmp.Or(bytes.Compare(a.Digest[:], b.Digest[:]), bytes.Compare(a.Model[:], b.Model[:]),
		cmp.Compare(a.Layer, b.Layer))
}
