//go:build linux && cgo && rdma

package verbs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/rdma"
)

// goes waits until a device reports that it is gone.
func goes(t *testing.T, d *device) {
	t.Helper()
	select {
	case <-d.Gone():
	case <-within(t).Done():
		t.Fatal("the device does not say that it is gone")
	}
}

// works reads through a pair of a device that was opened again.
func works(t *testing.T, d *device) {
	t.Helper()
	from, into := registeredIn(t, d, 1<<20), registeredIn(t, d, 1<<20)
	fill(from, 4)
	r, w := connected(t, d, d, rdma.PairOptions{})
	if err := r.Read(within(t), []rdma.Read{{Into: into, From: granted(t, w, from)[0].Key()}}); err != nil ||
		!bytes.Equal(from, into) {
		t.Errorf("a read: %v", err)
	}
}

func TestLinkDown(t *testing.T) {
	for name, c := range map[string]struct{ down, up func(s *soft) []string }{
		"link":    {func(s *soft) []string { return []string{"link", "set", s.link, "down"} }, func(s *soft) []string { return []string{"link", "set", s.link, "up"} }},
		"address": {func(s *soft) []string { return []string{"addr", "del", s.prefix, "dev", s.link} }, func(s *soft) []string { return []string{"addr", "add", s.prefix, "dev", s.link} }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoft(t)
			d := s.open()
			d.limit.Windows = name == "link"
			under, _, ends := busyLoops(t, d, d, 2, rdma.PairOptions{Timeout: time.Second})
			under()
			s.run("ip", c.down(s)...)
			goes(t, d)
			for range cap(ends) {
				if err := <-ends; !errors.Is(err, rdma.ErrBroken) {
					t.Errorf("a read ends with %v", err)
				}
			}
			if _, err := d.Pair(rdma.PairOptions{}); !errors.Is(err, rdma.ErrGone) {
				t.Errorf("a pair of a device that is gone: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if d, err := open(s.card, Options{}); err == nil {
				if name == "link" {
					t.Error("a device whose port is down was opened")
				}
				if err := d.Close(); err != nil { // the port has only the link-local address so far
					t.Error(err)
				}
			}
			s.run("ip", c.up(s)...)
			d = s.open()
			works(t, d)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLinkFlaps: a port that was down for a moment may be down as long the next time.
func TestLinkFlaps(t *testing.T) {
	s := newSoft(t)
	d := s.open()
	d.downFor.Store(int64(time.Hour))
	s.run("ip", "link", "set", s.link, "down")
	s.run("ip", "link", "set", s.link, "up")
	works(t, d)
	select {
	case <-d.Gone():
		t.Errorf("a device whose port was down for a moment is gone: %v", d.cause)
	default:
	}
	d.downFor.Store(int64(100 * time.Millisecond))
	s.run("ip", "link", "set", s.link, "down")
	goes(t, d)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestTakenAway: the device closes its context before a card is removed. If a context stayed open,
// Linux 6.1 would wait for ever when a software card is deleted.
func TestTakenAway(t *testing.T) {
	s := newSoft(t)
	for _, windows := range []bool{true, false} {
		d := s.open()
		d.limit.Windows = windows
		under, _, ends := busyLoops(t, d, d, 4, rdma.PairOptions{})
		under()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		goes(t, d)
		for range cap(ends) {
			if err := <-ends; !errors.Is(err, rdma.ErrGone) {
				t.Errorf("a read ends with %v", err)
			}
		}
		if u := used(t, s.card); u.Ctx != 0 || u.MR != 0 {
			t.Errorf("in use yet: %+v", u)
		}
		s.remove()
		if _, err := open(s.card, Options{}); err == nil {
			t.Error("a device that is not there was opened")
		}
		s.add()
		d = s.open()
		works(t, d)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNothingLeaks(t *testing.T) {
	cycles, peers := 1000, 100
	if watched {
		cycles, peers = 100, 10
	}
	d := opened(t)
	from, into := registeredIn(t, d, 1<<20), registeredIn(t, d, 1<<20)
	fill(from, 5)
	cycle := func(n int) {
		var all []*pair
		for range n {
			r, err := d.pair(rdma.PairOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w, err := d.pair(rdma.PairOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r, w)
			connect(t, r, w)
			key := granted(t, w, from[:4096], from[4096:])[0].Key()
			clear(into[:64])
			if err := r.Read(context.Background(), []rdma.Read{{Into: into[:64], From: key}}); err != nil ||
				!bytes.Equal(into[:64], from[:64]) {
				t.Fatal(err)
			}
		}
		for _, p := range all {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cycle(1)
	before := used(t, d.name)
	began := time.Now()
	for i := range cycles - 2*peers {
		// The kernel's resource counts do not include windows. A leaked window would keep its
		// domain from being destroyed.
		d.limit.Windows = i%2 == 0
		cycle(1)
	}
	for _, d.limit.Windows = range []bool{true, false} {
		cycle(peers)
	}
	t.Logf("%d cycles in %v; in use: %+v", cycles, time.Since(began), before)
	if after := used(t, d.name); after != before {
		t.Errorf("in use before: %+v, after %d connections: %+v", before, cycles, after)
	}
	if len(d.all()) != 0 {
		t.Errorf("the device has %d pairs yet", len(d.all()))
	}
}

func TestDestroyOrder(t *testing.T) {
	before := used(t, deviceName(t))
	d := opened(t)
	d.limit.Windows = true // so that all objects depend on the device's domain
	mem := registeredIn(t, d, 1<<20)
	w, _ := connected(t, d, d, rdma.PairOptions{})
	granted(t, w, mem)
	pd, cq, ch, regions := d.pd, w.cq, w.ch, *d.regions.Load()
	inUse := func(what string, close func() error) {
		t.Helper()
		if err := close(); !errors.Is(err, ErrInUse) {
			t.Errorf("%s was destroyed before what hangs on it: %v", what, err)
		}
	}
	inUse("context", d.card.close)
	inUse("domain", pd.close)
	inUse("completion queue", cq.close)
	inUse("channel", ch.close)
	if err := regions[0].close(); err == nil {
		t.Error("a region was destroyed before a window that is bound to it")
	}
	// The kernel also refuses to destroy an object on which others depend.
	held := pd.held
	pd.held = 0
	inUse("domain, as the kernel has it", pd.close)
	pd.held = held
	works(t, d) // all objects still exist
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for what, close := range map[string]func() error{"context": d.card.close, "domain": pd.close, "queue": cq.close,
		"channel": ch.close, "region": regions[0].close, "pair": w.Close, "device": d.Close} {
		if err := close(); err != nil {
			t.Errorf("%s destroyed once more: %v", what, err)
		}
	}
	if after := used(t, d.name); after != before {
		t.Errorf("in use before: %+v, after: %+v", before, after)
	}
}

// TestMemlock runs itself as a user to whom the limit applies. The limit does not apply to root,
// who has CAP_IPC_LOCK.
func TestMemlock(t *testing.T) {
	const limit = 8 << 20
	name := deviceName(t)
	if os.Getenv("RDMA_MEMLOCK") == "" {
		itself(t, &syscall.Credential{Uid: 65534, Gid: 65534}, "RDMA_MEMLOCK=1")
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	d, err := open(name, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Register(mapped(t, 4<<20)); err != nil {
		t.Errorf("less than the limit: %v", err)
	}
	err = d.Register(mapped(t, 6<<20))
	if !errors.Is(err, rdma.ErrMemlock) || !bytes.Contains([]byte(err.Error()), []byte("8388608")) ||
		!bytes.Contains([]byte(err.Error()), []byte("6291456")) {
		t.Fatalf("more than the limit: %v", err)
	}
	d.limit.Windows = false // so that a reading pair registers the 4 MiB again, and only one such pair fits
	paired(t, d, rdma.PairOptions{Reads: true})
	if _, err := d.Pair(rdma.PairOptions{Reads: true}); !errors.Is(err, rdma.ErrMemlock) {
		t.Fatalf("more than the limit, for a pair: %v", err)
	}
	paired(t, d, rdma.PairOptions{})
	t.Log("as wanted: ", err)
}
