package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/bpf"
)

// looker returns the look of a Telemetry whose windows are already full, for a process and the
// ports of this number of engines.
func looker(t testing.TB, open func() (Source, error), engines int) (look func()) {
	t.Helper()
	var targets []Target
	for i := range engines {
		_, port := listener(t)
		targets = append(targets,
			Target{Name: strconv.Itoa(i), FrontPort: port,
				EngineProcess: func() (int, error) { return os.Getpid(), nil }})
	}
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	tel := New(Options{Targets: targets, Logger: slog.New(slog.DiscardHandler)})
	tel.watchPorts(&s)
	now := time.Now()
	look = func() {
		now = now.Add(tel.o.Interval)
		tel.lookAt(&s, now)
	}
	for range 300 {
		look()
	}
	if missing := tel.problems; len(missing) != 0 {
		t.Fatal(missing)
	}
	for i := range engines {
		sample := tel.Latest(i)
		if _, known := sample.CPUPct.Get(); !known {
			t.Fatalf("the CPU time of engine %d is not known", i)
		}
		if first := tel.Latest(0); sample.RunqUsP99 != first.RunqUsP99 || !sample.At.Equal(first.At.Time) {
			t.Errorf("waits for a CPU are the host's: %v of engine %d, %v of engine 0", sample.RunqUsP99, i,
				first.RunqUsP99)
		}
	}
	return look
}

// programs loads the BPF programs into a file system of the test's own.
func programs(t testing.TB) func() (Source, error) {
	t.Helper()
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel: make check-bpf")
	}
	dir := t.TempDir()
	if err := syscall.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "cognitora")
	t.Cleanup(func() {
		if _, err := bpf.Clean(root); err != nil {
			t.Error(err)
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return OpenBPF(bpf.Options{Root: root})
}

// TestLookAllocates: a look at the programs' maps allocates nothing, with any number of engines.
func TestLookAllocates(t *testing.T) {
	for _, engines := range []int{1, 3} {
		t.Run(fmt.Sprint("engines=", engines), func(t *testing.T) {
			if n := testing.AllocsPerRun(200, looker(t, programs(t), engines)); n != 0 {
				t.Errorf("%g allocations", n)
			}
		})
	}
}

// BenchmarkLook measures a look and its sample, for each source. cpu-us is the thread's own time.
func BenchmarkLook(b *testing.B) {
	for name, open := range map[string]func(testing.TB) func() (Source, error){"bpf": programs,
		"proc": func(testing.TB) func() (Source, error) { return OpenProc() }} {
		b.Run(name, func(b *testing.B) {
			look := looker(b, open(b), 1)
			b.ReportAllocs()
			before := threadTime()
			for b.Loop() {
				look()
			}
			b.ReportMetric(float64((threadTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

// TestTicks: next returns after each interval and at the end of the context; the interval can be
// changed.
func TestTicks(t *testing.T) {
	k, err := newTicks(time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	ctx, stop := context.WithCancel(t.Context())
	defer k.stopWith(ctx)()
	for range 3 {
		if !k.next(ctx) {
			t.Fatal("no tick")
		}
	}
	k.set(time.Hour)
	ended := make(chan bool)
	go func() { ended <- k.next(ctx) }()
	stop()
	if <-ended {
		t.Error("a tick after the end")
	}
}
