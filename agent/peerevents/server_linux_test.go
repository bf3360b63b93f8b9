package peerevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
	wire "github.com/cognitora/dataplane/internal/peerevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source yields the events that the test puts in. source has room for room peers.
type source struct {
	file   *os.File
	events chan bpf.Event
	wake   chan error
	room   int

	mu      sync.Mutex
	watched map[netip.AddrPort]bool
}

func newSource(t *testing.T, room int) *source {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	return &source{file: f, events: make(chan bpf.Event, 2*queue), wake: make(chan error, 4), room: room,
		watched: map[netip.AddrPort]bool{}}
}

func (s *source) Next(time.Time) (bpf.Event, error) {
	select {
	case e := <-s.events:
		return e, nil
	case err := <-s.wake:
		return bpf.Event{}, err
	}
}

func (s *source) Interrupt() { s.wake <- errors.New("interrupted") }

func (s *source) Watch(at netip.AddrPort, _ uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watched[at] && len(s.watched) >= s.room {
		return unix.E2BIG
	}
	s.watched[at] = true
	return nil
}

func (s *source) Unwatch(at netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watched, at)
	return nil
}

func (s *source) count() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.watched) }

func (s *source) Dropped() (uint64, error) { return 7, nil }
func (s *source) PeersFD() int             { return int(s.file.Fd()) }
func (s *source) Close() error             { return s.file.Close() }

// site is a server under test.
type site struct {
	*Server
	t    *testing.T
	path string
}

func serve(t *testing.T, open func() (Source, error)) *site {
	t.Helper()
	s := &site{New(Options{Open: open, Layout: 42, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}), t,
		filepath.Join(t.TempDir(), "s")}
	l, err := Open(s.path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

// dial sends a greeting and returns the answer.
func (s *site) dial(hello wire.Message) (c *wire.Conn, answer wire.Message, fd int) {
	s.t.Helper()
	c, err := wire.Dial(s.t.Context(), s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if err := c.Send(&hello, -1); err != nil {
		s.t.Fatal(err)
	}
	m, fd, err := c.Receive()
	if err != nil {
		s.t.Fatal(err)
	}
	return c, *m, fd
}

// router connects an accepted router that asks for peers.
func (s *site) router(peers ...netip.AddrPort) *wire.Conn {
	s.t.Helper()
	c, m, fd := s.dial(wire.Message{Type: wire.Hello, Version: wire.Version})
	if m.Type != wire.Welcome || m.Layout != 42 || fd < 0 {
		s.t.Fatalf("%+v with %d", m, fd)
	}
	_ = unix.Close(fd)
	s.ask(c, peers...)
	return c
}

func (s *site) ask(c *wire.Conn, peers ...netip.AddrPort) {
	s.t.Helper()
	if err := c.Send(&wire.Message{Type: wire.Watch, Peers: peers}, -1); err != nil {
		s.t.Fatal(err)
	}
}

// told returns the next event.
func (s *site) told(c *wire.Conn) wire.Event {
	s.t.Helper()
	for {
		m, _, err := c.Receive()
		if err != nil {
			s.t.Fatal(err)
		}
		if m.Type == wire.Told {
			return m.Event
		}
	}
}

// beat returns the next sign of life for which ok is true.
func (s *site) beat(c *wire.Conn, ok func(b wire.Beat) bool) {
	s.t.Helper()
	for {
		m, _, err := c.Receive()
		if err != nil {
			s.t.Fatal(err)
		}
		if m.Type == wire.Alive && ok(m.Beat) {
			return
		}
	}
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func peer(n int) netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:80", n>>8, n&255))
}

// TestServer: each router is told about its own peers only. Old events and events of unknown kinds
// are dropped. Peers of a router that has left are no longer watched.
func TestServer(t *testing.T) {
	src := newSource(t, 1024)
	s := serve(t, func() (Source, error) { return src, nil })
	a, b := s.router(peer(1), peer(2)), s.router(peer(2), peer(3))
	within(t, "all are watched", func() bool { return src.count() == 3 })
	for _, e := range []bpf.Event{
		{Kind: bpf.Reset, Peer: peer(2), Age: 2 * stale},
		{Kind: 99, Peer: peer(2)},
		{Kind: bpf.Closed, Peer: peer(4)},
		{Kind: bpf.Timeout, Peer: peer(1), Timeouts: 1, LocalPort: 5},
		{Kind: bpf.Refused, Peer: peer(2), Age: time.Millisecond},
		{Kind: bpf.Recovered, Peer: peer(3)},
	} {
		src.events <- e
	}
	if e := s.told(a); e.Kind != wire.Timeout || e.Peer != peer(1) || e.Timeouts != 1 || e.LocalPort != 5 {
		t.Errorf("%+v", e)
	}
	for _, c := range []*wire.Conn{a, b} {
		if e := s.told(c); e.Kind != wire.Refused || e.Peer != peer(2) || e.Age < time.Millisecond {
			t.Errorf("%+v", e)
		}
	}
	if e := s.told(b); e.Kind != wire.Recovered || e.Peer != peer(3) {
		t.Errorf("%+v", e)
	}
	s.beat(a, func(b wire.Beat) bool { return b == wire.Beat{Ring: 7} })
	s.ask(a, peer(1))
	_ = b.Close()
	within(t, "one is watched", func() bool { return src.count() == 1 && s.Stats().Routers == 1 })
	if st := s.Stats(); st.Sent != 4 || st.Stale != 1 || st.Watched != 1 || st.RingFull != 7 {
		t.Errorf("%+v", st)
	}
}

// TestKinds: every kind of the kernel's events has a kind of the wire with the same name, and no
// other number has one.
func TestKinds(t *testing.T) {
	covered := map[wire.Kind]bool{}
	for of, kind := range kinds {
		if want := strings.ReplaceAll(of.String(), " ", "_"); kind.String() != want {
			t.Errorf("%s is told as %s", want, kind)
		}
		covered[kind] = true
	}
	for kind := wire.Timeout; kind < wire.Kinds; kind++ {
		if !covered[kind] {
			t.Errorf("%s is never told", kind)
		}
	}
	s := New(Options{})
	r := &router{events: make(chan told, queue), peers: map[netip.AddrPort]struct{}{peer(1): {}}}
	s.routers[r] = struct{}{}
	for _, c := range []struct {
		of   bpf.EventKind
		want bool
	}{
		{0, false}, {bpf.Timeout, true}, {bpf.Closed, true}, {bpf.Closed + 1, false},
		{1 << 8, false}, {1<<8 + bpf.Timeout, false}, {1<<16 + bpf.Reset, false}, {1<<32 - 1, false},
	} {
		s.dispatch(&bpf.Event{Kind: c.of, Peer: peer(1)}, time.Now())
		if got := len(r.events) > 0; got != c.want {
			t.Errorf("%d is told: %t", c.of, got)
		}
		for len(r.events) > 0 {
			<-r.events
		}
	}
}

// TestServerIsBounded: events that a router does not read are counted, and the router is told.
// Left-out peers are counted too, and watched once there is room. The number of routers is bounded.
func TestServerIsBounded(t *testing.T) {
	src := newSource(t, 2)
	s := serve(t, func() (Source, error) { return src, nil })
	a := s.router(peer(1), peer(2), peer(3))
	s.beat(a, func(b wire.Beat) bool { return b.LeftOut == 1 })
	s.ask(a, peer(3))
	s.beat(a, func(b wire.Beat) bool { return b.LeftOut == 0 })
	within(t, "events are lost", func() bool {
		for range queue {
			src.events <- bpf.Event{Kind: bpf.Reset, Peer: peer(3)}
		}
		return s.Stats().Lost > 0
	})
	s.beat(a, func(b wire.Beat) bool { return b.Lost > 0 })
	for range MaxRouters - 1 {
		s.router(peer(3))
	}
	if _, m, _ := s.dial(wire.Message{Type: wire.Hello, Version: wire.Version}); m.Type != wire.Rejected ||
		m.Reason != errEnough.Error() {
		t.Errorf("%+v", m)
	}
}

// TestRoomIsPassedOn: left-out peers are watched once another router has left, though their own
// router sends nothing new.
func TestRoomIsPassedOn(t *testing.T) {
	src := newSource(t, 2)
	s := serve(t, func() (Source, error) { return src, nil })
	a := s.router(peer(1), peer(2))
	within(t, "the table is full", func() bool { return src.count() == 2 })
	b := s.router(peer(2), peer(3), peer(4))
	s.beat(b, func(b wire.Beat) bool { return b.LeftOut == 2 })
	_ = a.Close()
	s.beat(b, func(b wire.Beat) bool { return b.LeftOut == 1 }) // peer 2 stays left out
	if st := s.Stats(); st.Watched != 2 || st.LeftOut != 1 {
		t.Errorf("%+v", st)
	}
	c := s.router(peer(1))
	s.beat(c, func(b wire.Beat) bool { return b.LeftOut == 1 })
	_ = b.Close()
	s.beat(c, func(b wire.Beat) bool { return b.LeftOut == 0 })
	src.events <- bpf.Event{Kind: bpf.Reset, Peer: peer(1)}
	if e := s.told(c); e.Kind != wire.Reset || e.Peer != peer(1) {
		t.Errorf("%+v", e)
	}
}

// TestRejected: another version, no greeting, a user without the right, and a missing source are
// each refused with a reason.
func TestRejected(t *testing.T) {
	src := newSource(t, 1)
	s := serve(t, func() (Source, error) { return src, nil })
	for _, c := range []struct {
		hello wire.Message
		says  string
	}{
		{wire.Message{Type: wire.Hello, Version: wire.Version + 1}, "speaks version"},
		{wire.Message{Type: wire.Watch}, "greeting"},
	} {
		if _, m, fd := s.dial(c.hello); m.Type != wire.Rejected || !strings.Contains(m.Reason, c.says) || fd >= 0 {
			t.Errorf("%+v with %d", m, fd)
		}
	}
	none := serve(t, func() (Source, error) { return nil, errors.New("no programs") })
	if _, m, _ := none.dial(wire.Message{Type: wire.Hello, Version: wire.Version}); m.Type != wire.Rejected ||
		m.Reason != "no programs" {
		t.Errorf("%+v", m)
	}
	if n := s.Stats().Refused; n != 2 {
		t.Errorf("%d refused", n)
	}
}

// TestSourceFails: routers are disconnected when the source fails. The next source reports the
// peers that the reconnected routers ask for.
func TestSourceFails(t *testing.T) {
	src := newSource(t, 10)
	s := serve(t, func() (Source, error) { return src, nil })
	a := s.router(peer(1))
	within(t, "it is watched", func() bool { return src.count() == 1 })
	src.wake <- errors.New("the ring is gone")
	for {
		if _, _, err := a.Receive(); err != nil {
			break
		}
	}
	within(t, "nobody is told", func() bool { st := s.Stats(); return st.Routers == 0 && st.Watched == 0 })
	if _, m, _ := s.dial(wire.Message{Type: wire.Hello, Version: wire.Version}); m.Type != wire.Rejected ||
		!strings.Contains(m.Reason, "the ring is gone") {
		t.Errorf("%+v", m)
	}
}
