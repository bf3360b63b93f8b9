package resp

import (
	"errors"

	"github.com/cognitora/dataplane/kvcached/store"
)

func (c *conn) get() {
	if k, ok := c.key(1); ok {
		c.answer(c.fetch(k))
	}
}

func (c *conn) mget() {
	if !c.keysFrom(1, 1) {
		return
	}
	var there []bool // whether any host may have the keys; nil: unknown
	if len(c.keys) > 1 {
		if there = make([]bool, len(c.keys)); !c.server.o.Store.Reachable(c.server.ctx, c.addrs, there) {
			there = nil
		}
	}
	c.array(len(c.keys))
	for i, k := range c.keys {
		switch {
		case c.stream.fails != nil:
			return
		case there != nil && !there[i]:
			c.server.counters.misses.Add(1)
			c.null()
		default:
			c.answer(c.fetch(k))
		}
	}
}

func (c *conn) strlen() {
	if k, ok := c.key(1); ok {
		if info, _, ok := c.stat(k); ok {
			c.integer(int64(info.Length))
		}
	}
}

// commit stores argument i as the value of k.
func (c *conn) commit(k key, i int, expires int64, o store.CommitOptions) error {
	st := c.server.o.Store
	var draft *store.Draft
	for _, v := range c.values {
		if v.arg == i {
			draft = v.draft
		}
	}
	if draft == nil {
		var err error
		if draft, err = st.Create(c.server.ctx, k.item(), len(c.args[i])); err != nil {
			return err
		}
		copy(draft.Bytes(), c.args[i])
		draft.Filled(len(c.args[i]))
	}
	o.Expires = expires
	info, err := draft.Commit(c.server.ctx, o)
	draft.Abort()
	if err == nil {
		c.server.counters.writes.Add(1)
		c.server.counters.bytesIn.Add(uint64(info.Length))
	}
	return err
}

// replace stores argument i under the key in argument 1, and replies OK.
func (c *conn) replace(i int, expires int64) {
	if k, ok := c.key(1); ok {
		c.done(c.commit(k, i, expires, store.CommitOptions{}))
	}
}

func (c *conn) setex()  { c.setFor(false) }
func (c *conn) psetex() { c.setFor(true) }

func (c *conn) setFor(milliseconds bool) {
	if at, ok := c.expiry(c.args[2], milliseconds, false); ok {
		c.replace(3, at)
	}
}

func (c *conn) setnx() {
	c.storeAbsent(0, func() { c.integer(1) }, func() { c.integer(0) })
}

// storeAbsent stores argument 2 under the key in argument 1, unless this host or another reachable
// host has a value. It replies with stored or there.
func (c *conn) storeAbsent(expires int64, stored, there func()) {
	k, ok := c.key(1)
	if !ok {
		return
	}
	_, found, ok := c.stat(k)
	if !ok {
		return
	}
	err := store.ErrExists
	if !found {
		err = c.commit(k, 2, expires, store.CommitOptions{IfAbsent: true})
	}
	switch {
	case err == nil:
		stored()
	case errors.Is(err, store.ErrExists):
		there()
	default:
		c.fail(c.storeError(err))
	}
}

func (c *conn) setCommand() {
	o, ok := c.setOptions()
	switch {
	case !ok:
	case o.nx:
		c.storeAbsent(o.expires, c.ok, c.null)
	default:
		c.replace(2, o.expires)
	}
}

func (c *conn) mset() {
	if len(c.args)%2 == 0 {
		c.fail("ERR wrong number of arguments for 'mset' command")
		return
	}
	if c.keysFrom(1, 2) {
		c.done(c.storeAll())
	}
}

// storeAll stores the values of MSET in order. The values before a failure stay.
func (c *conn) storeAll() error {
	for i, k := range c.keys {
		if err := c.commit(k, 2*i+2, 0, store.CommitOptions{}); err != nil {
			return err
		}
	}
	return nil
}
