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
	var there []bool // nil: not known
	if f := c.server.fleet; f != nil && len(c.keys) > 1 {
		if there = make([]bool, len(c.keys)); !f.Reachable(c.server.ctx, c.addrs, there) {
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

func (c *conn) getrange() {
	k, ok := c.key(1)
	from, ok1 := parseInteger(c.args[2])
	to, ok2 := parseInteger(c.args[3])
	if !ok {
		return
	}
	if !ok1 || !ok2 {
		c.fail(errNotInteger)
		return
	}
	b := c.fetch(k)
	if b == nil {
		c.bulk("")
		return
	}
	defer b.Release()
	p := b.Bytes()
	n := int64(len(p))
	if from < 0 && to < 0 && from > to {
		c.bulk("")
		return
	}
	if from < 0 {
		from = max(from+n, 0)
	}
	if to < 0 {
		to = max(to+n, 0)
	}
	if to = min(to, n-1); n == 0 || from > to {
		c.bulk("")
		return
	}
	c.payload(p[from : to+1])
}

// commitAbsent makes argument i k's value unless this host has one: then it is store.ErrExists.
func (c *conn) commitAbsent(k key, i int, expires int64) error {
	return c.commit(k, i, expires, store.CommitOptions{IfAbsent: true})
}

// commit makes argument i k's value.
func (c *conn) commit(k key, i int, expires int64, o store.CommitOptions) error {
	st := c.server.options.Store
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
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	err := c.commit(k, i, expires, store.CommitOptions{})
	c.unlock(k)
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.ok()
}

func (c *conn) setex()  { c.setFor(false) }
func (c *conn) psetex() { c.setFor(true) }

func (c *conn) setFor(milliseconds bool) {
	if at, ok := c.expiry(c.args[2], milliseconds, false); ok {
		c.replace(3, at)
	}
}

func (c *conn) setnx() {
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	_, found, ok := c.stat(k)
	if !ok {
		c.unlock(k)
		return
	}
	err := store.ErrExists
	if !found {
		err = c.commitAbsent(k, 2, 0)
	}
	c.unlock(k)
	if err != nil && !errors.Is(err, store.ErrExists) {
		c.fail(c.storeError(err))
		return
	}
	c.boolean(err == nil)
}

func (c *conn) getset() {
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	old := c.fetch(k)
	err := c.commit(k, 2, 0, store.CommitOptions{})
	c.unlock(k)
	c.answerUnless(old, err)
}

// answerUnless replies the block, or the error if there is one.
func (c *conn) answerUnless(b *store.Block, err error) {
	if err == nil {
		c.answer(b)
		return
	}
	if b != nil {
		b.Release()
	}
	c.fail(c.storeError(err))
}

func (c *conn) getdel() {
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	b := c.fetch(k)
	var err error
	if b != nil {
		_, err = c.server.options.Store.Delete(c.server.ctx, k.addr)
	}
	c.unlock(k)
	c.answerUnless(b, err)
}

func (c *conn) setCommand() {
	o, ok := c.setOptions(3, true)
	if !ok {
		return
	}
	if len(c.args) == 3 {
		c.replace(2, 0)
		return
	}
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	var old *store.Block
	info, found, ok := c.stat(k)
	if ok && o.get && found {
		old = c.fetch(k)
		found = old != nil
	}
	if !ok {
		c.unlock(k)
		return
	}
	if o.keepTTL && found {
		o.expires = info.Item.Expires
	}
	stored := !(o.nx && found || o.xx && !found)
	var err error
	switch {
	case stored && o.nx:
		err = c.commitAbsent(k, 2, o.expires)
	case stored:
		err = c.commit(k, 2, o.expires, store.CommitOptions{})
	}
	c.unlock(k)
	if errors.Is(err, store.ErrExists) {
		stored, err = false, nil
	}
	switch {
	case o.get || err != nil:
		c.answerUnless(old, err)
	case stored:
		c.ok()
	default:
		c.null()
	}
}

func (c *conn) getex() {
	o, ok := c.setOptions(2, false)
	if !ok {
		return
	}
	k, ok := c.key(1)
	if !ok {
		return
	}
	if !c.lock(k) {
		return
	}
	b := c.fetch(k)
	var err error
	if b != nil && (o.persist || o.expires != 0) {
		_, err = c.server.options.Store.SetExpiry(c.server.ctx, k.addr, o.expires)
	}
	c.unlock(k)
	c.answerUnless(b, err)
}

func (c *conn) mset() {
	if len(c.args)%2 == 0 {
		c.fail("ERR wrong number of arguments for 'mset' command")
		return
	}
	if !c.keysFrom(1, 2) {
		return
	}
	unlock, ok := c.lockAll()
	if !ok {
		return
	}
	err := c.storeAll()
	unlock()
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.ok()
}

func (c *conn) msetnx() {
	if len(c.args)%2 == 0 {
		c.fail("ERR wrong number of arguments for 'msetnx' command")
		return
	}
	if !c.keysFrom(1, 2) {
		return
	}
	unlock, ok := c.lockAll()
	if !ok {
		return
	}
	defer unlock()
	if !c.statAll() {
		return
	}
	for _, info := range c.infos {
		if info.Tiers != 0 {
			c.integer(0)
			return
		}
	}
	if err := c.storeAll(); err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.integer(1)
}

// storeAll commits the values of MSET in their order. What was stored before a failure stays.
func (c *conn) storeAll() error {
	for i, k := range c.keys {
		if err := c.commit(k, 2*i+2, 0, store.CommitOptions{}); err != nil {
			return err
		}
	}
	return nil
}
