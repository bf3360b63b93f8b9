package peerevents

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	wire "github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/router/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is a fleet that records its events, with a log.
type told struct {
	mu     sync.Mutex
	peers  []netip.AddrPort
	events []wire.Event
	log    bytes.Buffer

	renewed atomic.Int32
}

func (f *told) Peers() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.peers)
}
func (f *told) Tell(e wire.Event) { f.mu.Lock(); defer f.mu.Unlock(); f.events = append(f.events, e) }
func (f *told) count() int        { f.mu.Lock(); defer f.mu.Unlock(); return len(f.events) }

func (f *told) TakePaths(func(netip.AddrPort) (fleet.Counts, bool), time.Time) {}
func (f *told) ForgetPaths()                                                   {}
func (f *told) Renew(context.Context)                                          { f.renewed.Add(1) }

func (f *told) Write(b []byte) (int, error) { f.mu.Lock(); defer f.mu.Unlock(); return f.log.Write(b) }
func (f *told) said(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Count(f.log.String(), text)
}

func follow(t *testing.T) (c *Client, f *told, l *net.UnixListener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	f = &told{peers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.1:80")}}
	c = New(Options{Path: path, Fleet: f, Logger: slog.New(slog.NewTextHandler(f, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = l.Close()
	})
	return c, f, l
}

// accept accepts the client's connection and exchanges the greetings.
func accept(t *testing.T, l *net.UnixListener, answer *wire.Message) *wire.Conn {
	t.Helper()
	raw, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(raw)
	t.Cleanup(func() { _ = conn.Close() })
	if m, _, err := conn.Receive(); err != nil || m.Type != wire.Hello || m.Version != wire.Version {
		t.Fatalf("%+v, %v", m, err)
	}
	if err := conn.Send(answer, -1); err != nil {
		t.Fatal(err)
	}
	return conn
}

var welcome = &wire.Message{Type: wire.Welcome, Version: wire.Version}

func asked(t *testing.T, conn *wire.Conn, want int) {
	t.Helper()
	m, _, err := conn.Receive()
	if err != nil || m.Type != wire.Watch || len(m.Peers) != want {
		t.Fatalf("%+v, %v", m, err)
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

// TestClient checks that the fleet's peers are sent, again after a change, and that events arrive.
// The end of the agent is logged once, and the next agent is followed.
func TestClient(t *testing.T) {
	c, f, l := follow(t)
	conn := accept(t, l, welcome)
	asked(t, conn, 2)
	want := wire.Event{Kind: wire.Timeout, Peer: f.peers[0], LocalPort: 7, Timeouts: 2, Age: time.Millisecond}
	for _, m := range []*wire.Message{{Type: wire.Told, Event: want},
		{Type: wire.Alive, Beat: wire.Beat{Lost: 1, Ring: 2, LeftOut: 3}}} {
		if err := conn.Send(m, -1); err != nil {
			t.Fatal(err)
		}
	}
	within(t, "it is told", func() bool { return f.count() == 1 && c.Stats().LeftOut.Load() == 3 })
	if s := c.Stats(); f.events[0] != want || s.Events[wire.Timeout].Load() != 1 || s.Slow.Load() != 1 ||
		s.RingFull.Load() != 2 || !s.Connected.Load() || s.Counts.Load() {
		t.Errorf("%+v, %+v", f.events, s)
	}
	f.mu.Lock()
	f.peers = f.peers[:1]
	f.mu.Unlock()
	asked(t, conn, 1)
	_ = conn.Close()
	within(t, "nobody tells", func() bool { return c.Stats().Breaks.Load() > 0 && !c.Stats().Connected.Load() })
	asked(t, accept(t, l, welcome), 1)
	if n := f.renewed.Load(); n != 1 {
		t.Errorf("connected anew %d times, though the programs are the same", n)
	}
	if n := f.said("nobody tells"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// TestClientIsRefused checks that a repeated reason is logged once, and a new reason again.
func TestClientIsRefused(t *testing.T) {
	c, f, l := follow(t)
	for range 2 {
		_ = accept(t, l, &wire.Message{Type: wire.Rejected, Reason: "not you"}).Close()
	}
	_ = accept(t, l, &wire.Message{Type: wire.Welcome, Version: wire.Version + 1}).Close()
	_ = accept(t, l, &wire.Message{Type: wire.Alive}).Close()
	within(t, "all are counted", func() bool { return c.Stats().Breaks.Load() == 4 })
	if f.said("not you") != 1 || f.said("speaks version") != 1 || c.Stats().Malformed.Load() != 2 {
		t.Errorf("%d malformed: %s", c.Stats().Malformed.Load(), f.log.String())
	}
}

// TestWhatFollowsTheEnd checks that no step waits for the agent once ctx has ended. A step may set
// its deadline after the end of ctx has set one.
func TestWhatFollowsTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := New(Options{})
	if _, err := c.greet(ctx, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("greet: %v", err)
	}
	if err := c.hear(ctx, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("hear: %v", err)
	}
	if err := c.watch(ctx, conn, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
}

// TestPeersThatCannotBeSaid checks that a failed report of peers ends the connection, though the
// agent still sends events.
func TestPeersThatCannotBeSaid(t *testing.T) {
	c, f, l := follow(t)
	conn := accept(t, l, welcome)
	asked(t, conn, 2)
	if err := conn.CloseRead(); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.peers = f.peers[:1]
	f.mu.Unlock()
	within(t, "it breaks", func() bool {
		_ = conn.Send(&wire.Message{Type: wire.Alive}, -1)
		return c.Stats().Breaks.Load() == 1
	})
	asked(t, accept(t, l, welcome), 1)
	if n := c.Stats().Malformed.Load(); n != 0 {
		t.Errorf("%d malformed", n)
	}
}

// TestASecondWelcome checks that a second welcome is an error and that its descriptor is closed.
func TestASecondWelcome(t *testing.T) {
	c, _, l := follow(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	conn := accept(t, l, welcome)
	asked(t, conn, 2)
	before := open()
	for n := range 3 {
		if err := conn.Send(welcome, int(file.Fd())); err != nil {
			t.Fatal(err)
		}
		within(t, "it breaks", func() bool { return c.Stats().Malformed.Load() == uint64(n+1) })
		_ = conn.Close()
		conn = accept(t, l, welcome)
		asked(t, conn, 2)
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}
