package fleet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestDeletedWhilePulled: a key does not come back with a pull that was under way when it was
// deleted.
func TestDeletedWhilePulled(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	for i := range 60 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		await(t, "the key is known", func() bool {
			info, err := c.Stat(t.Context(), k)
			return err == nil && info.Tiers == store.Remote
		})
		var wg sync.WaitGroup
		for _, h := range []*host{b, c} {
			wg.Go(func() { h.text(k) })
		}
		deleter := []*host{a, b}[i%2]
		if _, err := deleter.Delete(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		for _, h := range []*host{a, b, c} {
			if got := h.text(k); got != "" {
				t.Fatalf("key %d, deleted on %s, is %q on %s", i, deleter.o.Self, got, h.o.Self)
			}
		}
	}
}

// TestSetWhilePulled: nobody goes on to answer with what a key was before it was set anew.
func TestSetWhilePulled(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	for i := range 60 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		await(t, "the key is known", func() bool {
			info, err := c.Stat(t.Context(), k)
			return err == nil && info.Tiers == store.Remote
		})
		var wg sync.WaitGroup
		for _, h := range []*host{b, c} {
			wg.Go(func() { h.text(k) })
		}
		b.put(keys, k, "new")
		wg.Wait()
		for _, h := range []*host{a, b, c} {
			if got := h.text(k); got == "old" {
				t.Fatalf("key %d is %q on %s", i, got, h.o.Self)
			}
		}
	}
}

// TestKeyOnManyHosts: a deletion reaches more hosts than the keeper remembers.
func TestKeyOnManyHosts(t *testing.T) {
	var hosts []*host
	for i := range wire.MaxHolders + 2 {
		hosts = append(hosts, start(t, fmt.Sprint("h", i), Options{}))
	}
	meet(hosts...)
	k := key("everywhere")
	hosts[0].put(keys, k, "x")
	for _, h := range hosts {
		await(t, "the key is reached", func() bool { return h.text(k) == "x" })
	}
	if _, err := hosts[1].Delete(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if _, err := h.Store.Stat(t.Context(), k); err == nil {
			t.Errorf("%s still has it", h.o.Self)
		}
	}
}

// TestKeeperIsGone: where the keeper does not answer, everybody is told of a deletion, and who
// cannot be told is an error.
func TestKeeperIsGone(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	kept := func(by *host) (i int) {
		for i = 0; ; i++ {
			k := key(fmt.Sprint(i))
			if a.roster.Load().keeper(&k).ID == by.o.Self {
				return i
			}
		}
	}
	k := key(fmt.Sprint(kept(c)))
	a.put(keys, k, "x")
	await(t, "b has pulled it", func() bool { return b.text(k) == "x" })
	c.stop()
	if _, err := a.Delete(t.Context(), k); err == nil {
		t.Error("c may have had it, and could not be told")
	}
	if b.text(k) != "" || a.text(k) != "" {
		t.Error("a deleted key is there")
	}
}
