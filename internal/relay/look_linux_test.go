package relay

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lookedAt returns a pool with n connections in use, to a server that never answers.
func lookedAt(t testing.TB, n int) (*Pool, []*Exchange) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := NewPool(Target{Addr: l.Addr().String()}, PoolOptions{Watch: true})
	t.Cleanup(p.Close)
	var all []*Exchange
	for range n {
		e, err := p.Send(&Request{Method: "GET", Path: "/"}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		all = append(all, e)
	}
	return p, all
}

// TestLook: connections in use take turns, and returned ones are not looked at.
func TestLook(t *testing.T) {
	p, all := lookedAt(t, 5)
	l := NewLooker()
	seen := map[*conn]int{}
	for range 5 {
		links := l.Look(p, 3)
		if len(links) != 3 {
			t.Fatalf("%d links", len(links))
		}
		for _, k := range links {
			if seen[k.conn]++; k.Lost != 0 || k.Heard > time.Minute {
				t.Errorf("%+v", k)
			}
		}
	}
	for c, n := range seen {
		if n != 3 || c == nil {
			t.Errorf("one was looked at %d times of 15", n)
		}
	}
	all[1].Close()
	all[3].Close()
	links := l.Look(p, 9)
	if len(links) != 3 || len(p.busy) != 3 {
		t.Errorf("%d links of 3", len(links))
	}
	if !links[0].Cut() || links[0].Cut() {
		t.Error("an exchange can be cut once")
	}
	for _, i := range []int{0, 2, 4} {
		if err := all[i].ReadHead(time.Now().Add(time.Millisecond)); err == nil {
			t.Error("an answer")
		}
		all[i].Close()
	}
	for _, k := range links {
		if k.Cut() {
			t.Error("cut after the end")
		}
	}
	if links := l.Look(p, 9); len(links) != 0 {
		t.Errorf("%d links", len(links))
	}
}

// TestAttend: connections are probed each second and given up in bounded time, also after they were
// in a loop.
func TestAttend(t *testing.T) {
	p, all := lookedAt(t, 1)
	c := all[0].c
	check := func(when string) {
		t.Helper()
		for option, want := range map[int]int{unix.TCP_KEEPIDLE: 1, unix.TCP_KEEPINTVL: 1,
			unix.TCP_USER_TIMEOUT: 15000} {
			var got int
			err := c.raw.Control(func(fd uintptr) { got, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
			if err != nil || got != want {
				t.Errorf("%s: option %d is %d, want %d: %v", when, option, got, want, err)
			}
		}
	}
	check("new")
	if err := c.parked.reserve(c.socket); err != nil {
		t.Fatal(err)
	}
	c.parkSocket()
	if links := NewLooker().Look(p, 1); len(links) != 1 || links[0].Heard == Never {
		t.Errorf("parked: %+v", links)
	}
	if err := c.regain(); err != nil {
		t.Fatal(err)
	}
	check("back")
	all[0].Close()
}

func TestJudge(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		info unix.TCPInfo
		want Link
	}{
		"well":      {unix.TCPInfo{Last_ack_recv: 20, Last_data_recv: 50}, Link{Heard: 20 * ms}},
		"data last": {unix.TCPInfo{Last_ack_recv: 50, Last_data_recv: 20}, Link{Heard: 20 * ms}},
		"first timeout": {
			unix.TCPInfo{Retransmits: 1, Last_data_sent: 5, Rto: 400e3, Last_ack_recv: 700, Last_data_recv: 900},
			Link{Lost: 1, Since: 205 * ms, Heard: 700 * ms}},
		"third timeout": {
			unix.TCPInfo{Retransmits: 3, Last_data_sent: 5, Rto: 1600e3, Last_ack_recv: 2700, Last_data_recv: 2900},
			Link{Lost: 3, Since: 805 * ms, Heard: 2700 * ms}},
		"probed": {unix.TCPInfo{Probes: 1, Last_ack_recv: 1100, Last_data_recv: 1100}, Link{Heard: 1100 * ms}},
		"no answer": {unix.TCPInfo{Probes: 1, Last_ack_recv: 1200, Last_data_recv: 5000},
			Link{Lost: 1, Since: 200 * ms, Heard: 1200 * ms}},
		"a failed probe": {unix.TCPInfo{Probes: 2, Last_ack_recv: 2010, Last_data_recv: 5000},
			Link{Lost: 2, Since: 1010 * ms, Heard: 2010 * ms}},
		"zero window": {unix.TCPInfo{Probes: 1, Backoff: 4, Last_ack_recv: 300, Last_data_recv: 5000},
			Link{Heard: 300 * ms}},
	} {
		var got Link
		got.judge(&c.info)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// BenchmarkLook looks at the 64 connections of a node.
func BenchmarkLook(b *testing.B) {
	p, all := lookedAt(b, looksInBenchmark)
	defer func() {
		for _, e := range all {
			e.Close()
		}
	}()
	l := NewLooker()
	b.ReportAllocs()
	for b.Loop() {
		l.Look(p, looksInBenchmark)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*looksInBenchmark), "ns/look")
}

const looksInBenchmark = 64
