package transport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestChooser plays pulls over lanes with given speeds, in bytes per second.
func TestChooser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := [2]*laneCounters{{}, {}}
		var c chooser
		c.init(Auto, quiet(), counters)
		pulls := func(n int, rate [2]float64) (on [2]int) {
			for range n {
				which := c.pick(true)
				on[which]++
				c.took(which, 8<<20, time.Duration(8<<20/rate[which]*1e9))
			}
			return on
		}
		if c.pick(false) != overQUIC {
			t.Error("nothing is known, and it is not QUIC")
		}
		if on := pulls(20, [2]float64{4e8, 1.2e9}); on[overTLS] < 15 {
			t.Error("TLS is faster, pulls went", on)
		}
		if c.pick(false) != overTLS {
			t.Error("small operations do not go the same way")
		}
		if on := pulls(400, [2]float64{4e8, 1.2e9}); on[overQUIC] < 3 || on[overQUIC] > 20 {
			t.Error("the other lane is measured again too often, or never:", on)
		}
		if on := pulls(1000, [2]float64{2e9, 1.2e9}); on[overQUIC] < 600 {
			t.Error("QUIC became faster, pulls went", on)
		}
		if !c.failed(overQUIC, errors.New("blocked")) || c.pick(true) != overTLS {
			t.Error("a lane that does not get through is used")
		}
		if c.failed(overTLS, errors.New("blocked")) {
			t.Error("both are down, and one is tried again at once")
		}
		time.Sleep(downFor)
		if c.pick(false) != overQUIC {
			t.Error("it is not tried again after a while")
		}
		var fixed chooser
		fixed.init(TLS, quiet(), counters)
		if fixed.took(overTLS, 8<<20, time.Hour); fixed.pick(true) != overTLS ||
			fixed.failed(overTLS, errors.New("blocked")) {
			t.Error("what was configured is not kept to")
		}
	})
}

// TestAuto: if UDP does not get through, TLS carries everything. Otherwise both lanes are measured.
func TestAuto(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	want := s.store.fill("b", 1<<20)
	p := s.peer(Auto)
	for range 10 {
		got, _, err := getOf(t.Context(), p, "b", len(want))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "auto", got, want)
	}
	if stats := s.pool.Stats(); stats.QUIC.Received == 0 || stats.TLS.Received == 0 {
		t.Errorf("%+v", stats)
	}
	deaf := newPool(t, PoolOptions{Tuning: Tuning{Idle: 200 * time.Millisecond},
		ListenUDP: func() (net.PacketConn, error) { return nil, errors.New("no UDP here") }})
	p, err := deaf.Peer(Target{Address: s.address})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), p, "c", want); err != nil {
		t.Error(err)
	}
	if stats := deaf.Stats(); stats.TLS.Sent == 0 || stats.QUIC.DialErrors != 1 {
		t.Errorf("%+v", stats)
	}
}

// TestTimeouts: after a pull times out, the other lane is preferred, unless it is known to be no
// faster.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := [2]*laneCounters{{}, {}}
		var log bytes.Buffer
		var c chooser
		c.init(Auto, slog.New(slog.NewTextHandler(&log, nil)), counters)
		c.ranOut(overQUIC, 0, 20*time.Millisecond, false)
		if c.pick(true) != overQUIC {
			t.Error("who has little time says nothing")
		}
		for range 5 {
			c.took(overQUIC, 8<<20, 10*time.Millisecond)
		}
		for range 3 { // pulls that were running then
			c.ranOut(overQUIC, 2<<20, 10*time.Second, false)
		}
		if c.pick(true) != overTLS || c.pick(false) != overTLS || counters[overTLS].chosen.Load() != 1 ||
			strings.Count(log.String(), "reason=timeout") != 1 {
			t.Errorf("after pulls over QUIC ran out of time: %+v\n%s", &c, log.String())
		}
		c.ranOut(overTLS, 3<<20, 10*time.Second, true)
		if c.pick(true) != overTLS {
			t.Error("QUIC was slower, and is preferred")
		}
		c.ranOut(overTLS, 0, 10*time.Second, true)
		if c.pick(true) != overQUIC {
			t.Error("QUIC got more through, and is not preferred")
		}
		c.ranOut(overQUIC, 0, 10*time.Second, true)
		if c.pick(true) != overQUIC || strings.Count(log.String(), "lane changed") != 2 {
			t.Error("nothing gets through, and lanes are changed", log.String())
		}
		if counters[overQUIC].ranOut.Load() != 5 || counters[overTLS].ranOut.Load() != 2 {
			t.Error("timeouts are counted wrongly")
		}
		c.failed(overTLS, errors.New("blocked"))
		c.rate[overTLS] = 1e9
		if c.ranOut(overQUIC, 1, 10*time.Second, true); c.pick(true) != overQUIC {
			t.Error("a lane that does not get through is preferred")
		}
	})
}

// TestAutoLeavesALane: UDP carries handshakes but no block. After one pull has timed out, the next
// one comes over TLS.
func TestAutoLeavesALane(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{Stripes: 1})
	want := s.store.fill("b", 2<<20)
	b := newBlocked()
	s.store.hook(func(h *hooks) { h.onGet = b.wait })
	p := s.peer(Auto)
	if err := p.Ping(t.Context()); err != nil { // makes the connection
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := p.Get(ctx, Get{Addr: addr("b"), Namespace: namespace, Hint: len(want),
		Alloc: func(_ Found, n int) ([]byte, error) { return make([]byte, n), nil }})
	if !ranOut(err) {
		t.Error(err)
	}
	close(b.let)
	got, _, err := get(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "over TLS", got, want)
	if q, over := s.pool.Stats().QUIC, s.pool.Stats().TLS; q.RanOut != 1 || q.Received != 0 || over.Chosen != 1 ||
		over.Received != uint64(len(want)) {
		t.Errorf("%+v %+v", q, over)
	}
}
