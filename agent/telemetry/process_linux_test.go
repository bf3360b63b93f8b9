package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/bpf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listener(t testing.TB) (net.Listener, uint16) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, uint16(l.Addr().(*net.TCPAddr).Port)
}

// TestListener: Listener finds the process that listens on a port, and fails if nobody listens.
func TestListener(t *testing.T) {
	l, port := listener(t)
	if pid, err := Listener(port); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v; this is %d", pid, err, os.Getpid())
	}
	l.Close()
	if pid, err := Listener(port); err == nil {
		t.Errorf("nobody listens, but %d is said to", pid)
	}
}

// TestRun: without any rights, the CPU time of the engine's processes is known after two looks, and
// missing figures are reported.
func TestRun(t *testing.T) {
	_, port := listener(t)
	ticked := make(chan struct{}, 1)
	tel := New(Options{
		Open: OpenProc(), Interval: MinInterval, share: 1,
		Targets: []Target{{FrontPort: port, EnginePort: port, EngineProcess: func() (int, error) {
			return Listener(port)
		}}}, Logger: slog.New(slog.DiscardHandler),
		Tick: func() bool {
			select {
			case ticked <- struct{}{}:
			default:
			}
			return true
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tel.Run(ctx) }()
	limit := time.After(time.Minute)
	for known := false; !known; {
		select {
		case <-ticked:
			_, known = tel.Latest(0).CPUPct.Get()
		case <-limit:
			t.Fatalf("%+v, %v", tel.Latest(0), tel.Missing())
		}
	}
	if open := tel.With(func(r bpf.Reader, engines Engines) {
		if g, ok := engines(0); !ok || g.Root != os.Getpid() || r.Source() != bpf.SourceProc {
			t.Errorf("%+v, %s", g, r.Source())
		}
	}); !open || len(tel.Missing()) == 0 {
		t.Errorf("%v", tel.Missing())
	}
	if looks, cpu := tel.Cost(); looks < 2 || cpu <= 0 {
		t.Errorf("%d looks took %v", looks, cpu)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// full is a reader whose ports and groups are all taken by engines that have ended.
type full struct {
	bpf.Reader
	ports []uint16
}

func (f *full) WatchPort(port uint16) error {
	if len(f.ports) > 1 {
		return errors.New("full")
	}
	f.ports = append(f.ports, port)
	return nil
}

func (f *full) UnwatchPort(port uint16) error {
	for i := range f.ports {
		if f.ports[i] == port {
			f.ports = append(f.ports[:i], f.ports[i+1:]...)
			return nil
		}
	}
	return nil
}

func (f *full) Ports() (all []bpf.Port, err error) {
	for _, p := range f.ports {
		all = append(all, bpf.Port{Port: p})
	}
	return all, nil
}

// TestForgottenPorts: ports of ended engines make room, and the others stay.
func TestForgottenPorts(t *testing.T) {
	_, there := listener(t)
	gone, port := listener(t)
	gone.Close()
	f := &full{ports: []uint16{there, port}}
	if err := watchPort(f, 9); err != nil || len(f.ports) != 2 || f.ports[0] != there || f.ports[1] != 9 {
		t.Errorf("%v, %v", f.ports, err)
	}
}
