package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/internal/redisserver"
)

// proxy delays what a server answers, or loses what it is asked.
type proxy struct {
	at    string
	delay atomic.Int64 // ns
	loses atomic.Bool
}

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{at: listener.Addr().String()}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { listener.Close() })
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() { client.Close(); server.Close() })
			all.Go(func() { p.copy(server, client, false); server.Close() })
			all.Go(func() { p.copy(client, server, true); client.Close() })
		}
	})
	return p
}

func (p *proxy) copy(to, from net.Conn, answers bool) {
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if answers {
			time.Sleep(time.Duration(p.delay.Load()))
		} else if p.loses.Load() {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// fault breaks a server for as long as the test wants.
type fault struct {
	begin, end func()
	lost       bool // the server has lost its state
}

func faults(t testing.TB, what string, s *server, p *proxy) fault {
	return map[string]fault{
		"killed": {s.Kill, s.Start, true},
		"paused": {s.Pause, s.Proceed, false},
		"slow": {
			func() { p.delay.Store(int64(400 * time.Millisecond)) },
			func() { p.delay.Store(0) }, false,
		},
	}[what]
}

// clients make requests until they are told to stop.
type clients struct {
	stop                               chan struct{}
	all                                sync.WaitGroup
	admitted, refused, unavailable, by atomic.Int64
}

func startClients(n int, l *Limiter, limits ...Limit) *clients {
	c := &clients{stop: make(chan struct{})}
	for range n {
		c.all.Go(func() {
			var r Reservation
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(200 * time.Microsecond):
				}
				_, v := l.Reserve(&r, limits)
				switch {
				case v == Refused:
					c.refused.Add(1)
				case v == Unavailable:
					c.unavailable.Add(1)
				case r.by == alone:
					c.admitted.Add(1)
				default:
					c.by.Add(1)
				}
				r.Settle(nil)
			}
		})
	}
	return c
}

func (c *clients) end() { close(c.stop); c.all.Wait() }

// TestFailures breaks Redis under load, in each way, with each setting and in both modes. Requests
// go on as the setting says, without asking Redis, until Redis answers.
func TestFailures(t *testing.T) {
	for _, what := range []string{"killed", "paused", "slow"} {
		for _, on := range []string{Local, Open, Closed} {
			for mode, exact := range map[string]bool{"exact": true, "leased": false} {
				name := strings.Join([]string{what, on, mode}, " ")
				t.Run(name, func(t *testing.T) { testFailure(t, what, on, exact) })
			}
		}
	}
}

func testFailure(t *testing.T, what, on string, exact bool) {
	s := startServer(t)
	p := startProxy(t, s.At)
	l, _ := limiter(t, Options{Addresses: []string{p.at}, OnFailure: on, Exact: exact, Timeout: 200 * time.Millisecond})
	k, fresh := subject(l, "acme", "key"), subject(l, "acme", "fresh")
	load := startClients(20, l, k.of(tpd, 1e9, 10), k.of(flight, 1000, 1))
	defer load.end()
	wait(t, "Redis decides", func() bool { return load.by.Load() > 200 })
	f := faults(t, what, s, p)
	f.begin()
	wait(t, "Redis is away", func() bool { return l.Stats().Away })
	alone := func() int64 { return load.admitted.Load() + load.unavailable.Load() + load.by.Load() }
	before, was, began := l.Stats(), alone(), load.unavailable.Load()
	wait(t, "requests go on", func() bool { return alone()-was > 2000 })
	after := l.Stats()
	if after.Away && (after.RoundTrips-before.RoundTrips)*50 > alone()-was {
		t.Errorf("%d round trips while Redis was away", after.RoundTrips-before.RoundTrips)
	}
	if exact && on == Closed && load.unavailable.Load() == began || on != Closed && load.unavailable.Load() > 0 {
		t.Errorf("%d requests found no Redis", load.unavailable.Load())
	}
	if after.Away {
		limit, n := fresh.of(tpd, 1000, 10), 0
		for ; n < 200; n++ {
			var r Reservation
			if _, v := l.Reserve(&r, []Limit{limit}); v != Admitted {
				break
			}
		}
		if want := map[string]int{Local: 100, Open: 200, Closed: 0}[on]; n != want && l.Stats().Away {
			t.Errorf("%d requests of %d", n, want)
		}
	}
	f.end()
	wait(t, "Redis is back", func() bool { return !l.Stats().Away })
	is := load.by.Load()
	wait(t, "Redis decides again", func() bool { return load.by.Load() > is+500 && !l.Stats().Away })
	t.Logf("%+v", l.Stats())
}

// TestShares: while Redis is away each of two routers admits half of a limit, and more only of what
// is larger than its half.
func TestShares(t *testing.T) {
	s := startServer(t)
	o := Options{Addresses: []string{s.At}, Exact: true, look: 20 * time.Millisecond, Timeout: 200 * time.Millisecond}
	a, _ := limiter(t, o)
	b, _ := limiter(t, o)
	wait(t, "they know each other", func() bool { return a.Stats().Routers == 2 && b.Stats().Routers == 2 })
	s.Kill()
	for _, l := range []*Limiter{a, b} {
		wait(t, "Redis is away", func() bool { return l.Stats().Away })
		k := subject(l, "acme", "key")
		for range 50 {
			reserve(t, l, Admitted, k.of(tpd, 1001, 10))
		}
		_, no := reserve(t, l, Refused, k.of(rpm, 100, 1), k.of(tpd, 1001, 10))
		if no.Limit != 1 || no.Used < 499 || no.Wait <= 0 {
			t.Errorf("%+v", no)
		}
		large := k.of(tpm, 1000, 900)
		reserve(t, l, Admitted, large)
		reserve(t, l, Refused, large)
		reserve(t, l, Refused, k.of(tpm, 1000, 1))
		for range 3 {
			reserve(t, l, Admitted, k.of(flight, 5, 1))
		}
		reserve(t, l, Refused, k.of(flight, 5, 1))
		reserve(t, l, Admitted, k.of(budget, 100, 50))
		reserve(t, l, Refused, k.of(budget, 100, 1))
	}
}

// TestNoUnits: a debt does not hold up a request that needs nothing of the limit, whoever decides.
func TestNoUnits(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true, Timeout: 200 * time.Millisecond})
	k := subject(l, "acme", "key")
	b := k.Bucket(tpd)
	r, _ := reserve(t, l, Admitted, k.of(tpd, 1000, 500))
	r.Settle([]int64{5000})
	settled(t, l)
	reserve(t, l, Admitted, k.of(tpd, 1000, 0))
	s.Kill()
	wait(t, "Redis is away", func() bool {
		_, v := l.Reserve(new(Reservation), []Limit{k.of(rpm, 1e6, 1)})
		return v == Admitted && l.away.Load()
	})
	b.word.Store(now() + 2*int64(b.window))
	reserve(t, l, Refused, k.of(tpd, 1000, 1))
	reserve(t, l, Admitted, k.of(tpd, 1000, 0))

	b.left.Store(-100)
	if _, ok := b.spend(1); ok {
		t.Error("a lease in debt gives a unit")
	}
	if _, ok := b.spend(0); !ok {
		t.Error("a lease in debt holds up a request without units")
	}
}

// TestNoScript: a server that has forgotten the scripts gets them again, within the same request,
// also if others forget and give them at the same time.
func TestNoScript(t *testing.T) {
	s := startServer(t)
	for _, exact := range []bool{true, false} {
		l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: exact, OnFailure: Closed, look: time.Millisecond})
		k := subject(l, "acme", "key")
		for range 50 {
			if err := s.db.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			r, _ := reserve(t, l, Admitted, k.of(tpd, 1e6, 1000))
			r.Settle(nil)
			settled(t, l)
		}
		if n := l.Stats().Failures; n > 0 {
			t.Errorf("%d failures", n)
		}
	}
}

// TestLateSettlements: what ends while Redis is away is settled when it is back, whether Redis has
// heard of it late or never.
func TestLateSettlements(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", lost), func(t *testing.T) { testLateSettlements(t, lost) })
	}
}

func testLateSettlements(t *testing.T, lost bool) {
	s := startServer(t)
	p := startProxy(t, s.At)
	l, _ := limiter(t, Options{Addresses: []string{p.at}, Exact: true})
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(budget, 1e6, 1000), k.of(flight, 100, 1)}
	var all []*Reservation
	for range 50 {
		r, _ := reserve(t, l, Admitted, limits...)
		for r.by == alone { // the machine is busy, and Redis was late
			r.Settle([]int64{0, 0})
			r, _ = reserve(t, l, Admitted, limits...)
		}
		all = append(all, r)
	}
	away, back := s.Pause, s.Proceed
	if lost {
		away, back = func() { p.loses.Store(true) }, func() { p.loses.Store(false) }
	}
	away()
	for _, r := range all {
		r.Settle([]int64{10, 0})
	}
	wait(t, "Redis is away", func() bool { return l.Stats().Away })
	back()
	settled(t, l)
	held, used := counted(t, s, k.Bucket(budget))
	if flying, _ := counted(t, s, k.Bucket(flight)); held != 0 || flying != 0 || used != 500 {
		t.Errorf("%d held, %d used, %d in flight", held, used, flying)
	}
}

// TestFailover: sentinels make a replica the master under load of routers with each setting, in
// both modes, side by side.
func TestFailover(t *testing.T) {
	master, replica, sentinel := startWatched(t)
	type router struct {
		name, on string
		exact    bool
		l        *Limiter
		load     *clients
	}
	var all []*router
	for _, on := range []string{Local, Open, Closed} {
		for mode, exact := range map[string]bool{"exact": true, "leased": false} {
			r := &router{name: on + " " + mode, on: on, exact: exact}
			r.l, _ = limiter(t, Options{
				Addresses: []string{sentinel.At}, Master: "limits", OnFailure: on, Exact: exact,
				Timeout: 200 * time.Millisecond,
			})
			k := subject(r.l, r.name, "key")
			r.load = startClients(4, r.l, k.of(tpd, 1e9, 10), k.of(flight, 1000, 1))
			defer r.load.end()
			all = append(all, r)
		}
	}
	going := func(r *router) int64 {
		return r.load.by.Load() + r.load.admitted.Load() + r.load.unavailable.Load()
	}
	for _, r := range all {
		wait(t, r.name+": the master decides", func() bool { return r.load.by.Load() > 200 && !r.l.Stats().Away })
	}
	failures := make([]uint64, len(all))
	for i, r := range all {
		failures[i] = uint64(r.l.Stats().Failures)
	}
	master.Kill()
	for i, r := range all {
		wait(t, r.name+": it is away", func() bool { return uint64(r.l.Stats().Failures) > failures[i] })
		is := going(r)
		wait(t, r.name+": requests go on", func() bool { return going(r) > is+100 })
	}
	wait(t, "the replica is asked", func() bool { return replica.evalshas() > 0 })
	for _, r := range all {
		wait(t, r.name+": the replica decides", func() bool { return !r.l.Stats().Away })
		is := r.load.by.Load()
		wait(t, r.name+": requests ask it", func() bool { return r.load.by.Load() > is+200 })
		alone, none := r.load.admitted.Load(), r.load.unavailable.Load()
		switch refused := r.load.refused.Load(); {
		case refused > 0:
			t.Errorf("%s: %d requests were refused", r.name, refused)
		case r.on == Closed && (alone > 0 || r.exact && none == 0):
			t.Errorf("%s: %d were admitted without Redis, %d were not", r.name, alone, none)
		case r.on != Closed && (none > 0 || r.exact && alone == 0):
			t.Errorf("%s: %d were not admitted without Redis, %d were", r.name, none, alone)
		}
		t.Logf("%s: %+v; %d by Redis, %d alone, %d not", r.name, r.l.Stats(), r.load.by.Load(), alone, none)
	}
}

// startWatched starts a master with a replica, and a sentinel that watches them.
func startWatched(t *testing.T) (master, replica, sentinel *server) {
	master = startServer(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.At)
	replica = startServer(t, "--replicaof", host+" "+port)
	wait(t, "the replica follows", func() bool {
		text, _ := replica.db.Info(context.Background(), "replication").Result()
		return strings.Contains(text, "master_link_status:up")
	})
	at := freeport.Address(t)
	sentinelHost, sentinelPort, _ := net.SplitHostPort(at)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := "port " + sentinelPort + "\nbind " + sentinelHost + "\n" +
		"sentinel monitor limits " + host + " " + port + " 1\n" +
		"sentinel down-after-milliseconds limits 300\nsentinel failover-timeout limits 3000\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sentinel = withClient(t, redisserver.StartAt(t, at, file, "--sentinel"))
	wait(t, "the sentinel knows the replica", func() bool {
		n, _ := sentinel.db.Do(context.Background(), "SENTINEL", "REPLICAS", "limits").Slice()
		return len(n) == 1
	})
	return master, replica, sentinel
}

// TestReportsInTurn: a report that finds its script unknown takes nothing from what a later call
// has given.
func TestReportsInTurn(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}})
	k := subject(l, "acme", "key")
	if err := errors.Join(s.db.ScriptFlush(t.Context()).Err(),
		s.db.ScriptLoad(t.Context(), l.scripts.reserve.source).Err()); err != nil {
		t.Fatal(err)
	}
	limit := k.of(flight, 100, 100)
	report, lease := l.scripts.newReport(k.mark+k.holder, 0), l.scripts.newLease(k.mark)
	report.report(&limit, 0, 0)
	lease.lease(&limit, 70, 0)
	var late error
	report.done = func(_ []int64, err error) { late = err }
	if err := l.scripts.runAll(t.Context(), s.db, []*call{report, lease}); err != nil || late == nil {
		t.Errorf("error %v; of the report %v", err, late)
	}
	if held, _ := counted(t, s, k.Bucket(flight)); held != 70 {
		t.Errorf("%d are held, not 70", held)
	}
	report.report(&limit, 0, 0)
	if err := l.scripts.runAll(t.Context(), s.db, []*call{report}); err != nil || late != nil {
		t.Errorf("the script stays unknown: %v, %v", err, late)
	}
}
