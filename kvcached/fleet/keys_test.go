package fleet

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestDeletedWhilePulled deletes a key while a host pulls it. The key does not come back.
func TestDeletedWhilePulled(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	for i := range 60 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		eventually(t, "the key is known", func() bool {
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
		eventually(t, fmt.Sprintf("key %d, deleted on %s, is nowhere", i, deleter.o.Self), func() bool {
			return nowhere(t, k, a, b, c)
		})
	}
}

// nowhere tells whether no host's store has the key.
func nowhere(t *testing.T, k block.Addr, hosts ...*host) bool {
	t.Helper()
	for _, h := range hosts {
		if _, err := h.Store.Stat(t.Context(), k); !errors.Is(err, store.ErrMiss) {
			return false
		}
	}
	return true
}

// TestSetWhilePulled sets a key while a host pulls it. No host keeps the old value.
func TestSetWhilePulled(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	for i := range 60 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		eventually(t, "the key is known", func() bool {
			info, err := c.Stat(t.Context(), k)
			return err == nil && info.Tiers == store.Remote && a.Stats().Notices == 0
		})
		var wg sync.WaitGroup
		for _, h := range []*host{b, c} {
			wg.Go(func() { h.text(k) })
		}
		b.put(keys, k, "new")
		wg.Wait()
		for _, h := range []*host{a, b, c} {
			eventually(t, fmt.Sprintf("key %d is new on %s", i, h.o.Self), func() bool { return h.text(k) == "new" })
		}
	}
}

// TestKeyOnManyHosts checks that a deletion reaches more holders than the keeper records.
func TestKeyOnManyHosts(t *testing.T) {
	var hosts []*host
	for i := range wire.MaxHolders + 2 {
		hosts = append(hosts, start(t, fmt.Sprint("h", i), Options{}))
	}
	meet(hosts...)
	k := key("everywhere")
	hosts[0].put(keys, k, "x")
	for _, h := range hosts {
		eventually(t, "the key is reached", func() bool { return h.text(k) == "x" })
	}
	if _, err := hosts[1].Delete(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no host has it", func() bool { return nowhere(t, k, hosts...) })
}

// TestKeeperIsGone deletes a key while its keeper is down. The key is deleted on this host, and the
// notice counts as lost.
func TestKeeperIsGone(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	k := keptBy(a.roster.Load(), "c")
	a.put(keys, k, "x")
	eventually(t, "b has pulled it", func() bool { return b.text(k) == "x" })
	c.stop()
	lost := a.Stats().NoticesLost
	if there, err := a.Delete(t.Context(), k); err != nil || !there {
		t.Error(there, err)
	}
	if _, err := a.Store.Stat(t.Context(), k); !errors.Is(err, store.ErrMiss) {
		t.Error(err)
	}
	eventually(t, "it is counted", func() bool { return a.Stats().NoticesLost > lost })
}

// TestOneValueChangedOften sets one key 10,000 times on one host and reads it on two. No read mixes
// two values, and both hosts have the last value at the end.
func TestOneValueChangedOften(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	k := key("often")
	value := func(i int) string { return strings.Repeat(fmt.Sprintf("%08d", i), 512) }
	a.put(keys, k, value(0))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for _, h := range []*host{a, b} {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := h.text(k); got != "" && got != strings.Repeat(got[:8], 512) {
					t.Errorf("a torn value on %s", h.o.Self)
					return
				}
			}
		})
	}
	const changes = 10_000
	for i := range changes {
		a.put(keys, k, value(i+1))
		if i%1000 == 0 {
			eventually(t, "b has the value", func() bool { return b.text(k) == value(i+1) })
		}
	}
	last := value(changes)
	eventually(t, "both have the last value", func() bool { return a.text(k) == last && b.text(k) == last })
	close(stop)
	readers.Wait()
	if got := b.text(k); got != last {
		t.Errorf("b went back to %.8s", got)
	}
	if s := a.Stats(); s.Differed == 0 {
		t.Errorf("no value that differed is counted: %+v", s)
	}
}

// TestSameValueStays sets a key again with the same bytes. A holder keeps its copy and takes over
// the new expiry.
func TestSameValueStays(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	k := key("same")
	a.put(keys, k, "x")
	eventually(t, "b has pulled it", func() bool { return b.text(k) == "x" })
	a.put(keys, k, "x")
	expires := time.Now().Add(time.Hour).UnixMilli()
	if there, err := a.SetExpiry(t.Context(), k, expires); err != nil || !there {
		t.Error(there, err)
	}
	eventually(t, "b knows when it is over", func() bool {
		i, err := b.Store.Stat(t.Context(), k)
		return err == nil && i.Item.Expires == expires
	})
	if s := a.Stats(); s.Differed != 0 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}
