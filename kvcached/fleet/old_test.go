package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// TestNoOldValueStays runs different orders of writes. No host has the older value once all notices
// are sent. A miss is correct.
func TestNoOldValueStays(t *testing.T) {
	for name, c := range map[string]struct {
		early bool // all hosts know the location of the old value
		write func(t *testing.T, a, c *host, k block.Addr)
	}{
		"set elsewhere, then here": {false, func(_ *testing.T, a, c *host, k block.Addr) {
			c.put(keys, k, "old")
			a.put(keys, k, "new")
		}},
		"set elsewhere, then deleted here": {false, func(t *testing.T, a, c *host, k block.Addr) {
			c.put(keys, k, "old")
			if _, err := a.Delete(t.Context(), k); err != nil {
				t.Error(err)
			}
		}},
		"the new value is evicted before its notice": {true, func(t *testing.T, a, _ *host, k block.Addr) {
			for i := range 20 { // makes the lanes busy
				a.put(keys, key(fmt.Sprint("busy", i)), "x")
			}
			a.put(keys, k, "new")
			if _, err := a.Store.Delete(t.Context(), k); err != nil { // stands for an eviction
				t.Error(err)
			}
			a.text(k)
		}},
		"a client leaves during a pull": {true, func(t *testing.T, a, c *host, k block.Addr) {
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if b, err := a.Get(ctx, k); err == nil {
					b.Release()
				}
			}()
			leave()
			c.put(keys, k, "new")
			<-done
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, d := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
			meet(a, b, d)
			const n = 100
			for i := range n {
				k := key(fmt.Sprint(i))
				if c.early {
					d.put(keys, k, "old")
					eventually(t, "the old value is known", func() bool {
						_, err := a.Stat(t.Context(), k)
						return err == nil
					})
				}
				c.write(t, a, d, k)
			}
			silent(t, a, b, d)
			for i := range n {
				for _, h := range []*host{a, b, d} {
					eventually(t, fmt.Sprintf("key %d on %s is not the old one", i, h.o.Self), func() bool {
						return h.own(key(fmt.Sprint(i))) != "old"
					})
				}
			}
		})
	}
}

// silent waits until the hosts have sent all notices.
func silent(t *testing.T, hosts ...*host) {
	t.Helper()
	eventually(t, "all notices are sent", func() bool {
		for _, h := range hosts {
			if h.Stats().Notices > 0 {
				return false
			}
		}
		return true
	})
}

// own is the value in the host's own store; empty: there is none.
func (h *host) own(k block.Addr) string {
	b, err := h.Store.Get(h.t.Context(), k)
	if err != nil {
		return ""
	}
	defer b.Release()
	return string(b.Bytes())
}

// TestExpiryOutlivesAPull sets the expiry of a key on a host that pulls the key at the same time.
func TestExpiryOutlivesAPull(t *testing.T) {
	a, c := start(t, "a", Options{}), start(t, "c", Options{})
	meet(a, c)
	at := time.Now().Add(time.Hour).UnixMilli()
	const n = 100
	for i := range n {
		k := key(fmt.Sprint(i))
		c.put(keys, k, "v")
		eventually(t, "it is known", func() bool { _, err := a.Stat(t.Context(), k); return err == nil })
		silent(t, c)
		pulled := make(chan struct{})
		go func() { defer close(pulled); a.text(k) }()
		if there, err := a.SetExpiry(t.Context(), k, at); err != nil || !there {
			t.Fatal(there, err)
		}
		a.text(k)
		<-pulled
	}
	silent(t, a, c)
	for i := range n {
		for _, h := range []*host{a, c} {
			eventually(t, fmt.Sprintf("key %d on %s has its time", i, h.o.Self), func() bool {
				info, err := h.Store.Stat(t.Context(), key(fmt.Sprint(i)))
				return err != nil || info.Item.Expires == at
			})
		}
	}
}

// TestToldAfterAStall checks that a host which hangs for a moment gets its notices afterwards.
func TestToldAfterAStall(t *testing.T) {
	a, c := start(t, "a", Options{AnswerTimeout: 200 * time.Millisecond}), start(t, "c", Options{})
	p := newPath(t, c.member.Address)
	c.SetMembers([]Member{a.member, c.member})
	c.member.Address = p.Addr().String()
	a.SetMembers([]Member{a.member, c.member})
	const n = 40
	for i := range n {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		eventually(t, "c has it", func() bool { return c.text(k) == "old" })
	}
	silent(t, a)
	p.block()
	for i := range n {
		a.put(keys, key(fmt.Sprint(i)), "new")
	}
	eventually(t, "c is left out", func() bool { return a.Stats().LeftOut == 1 })
	p.open()
	silent(t, a)
	if lost := a.Stats().NoticesLost; lost > 0 {
		t.Logf("the machine stood so long that %d notices were given up, as is counted", lost)
		return
	}
	for i := range n {
		eventually(t, "c has the new value", func() bool { return c.text(key(fmt.Sprint(i))) == "new" })
	}
}

// TestSetBeforeTheFleetIsKnown sets a key before etcd has listed the fleet. The notice is sent
// afterwards.
func TestSetBeforeTheFleetIsKnown(t *testing.T) {
	a, c := startUnnamed(t, "a", Options{}, func(*transport.ServerOptions) {}), start(t, "c", Options{})
	k := key("k")
	c.put(keys, k, "old")
	a.put(keys, k, "new")
	if a.Stats().Notices != 1 {
		t.Errorf("%+v", a.Stats())
	}
	meet(a, c)
	a.Named()
	silent(t, a, c)
	eventually(t, "c has not the old value", func() bool { return c.own(k) != "old" })
}
