package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestFirstErrorCancelsTheGroup(t *testing.T) {
	boom := errors.New("boom")
	g := NewGroup(t.Context())
	g.Go("waits", untilDone)
	g.Go("fails", func(context.Context) error { return boom })
	err := g.Wait()
	if !errors.Is(err, boom) || err.Error() != "fails: boom" {
		t.Errorf("got %v", err)
	}
	if !errors.Is(context.Cause(g.Context()), boom) {
		t.Errorf("cause: %v", context.Cause(g.Context()))
	}
}

func TestStopIsNoError(t *testing.T) {
	g := NewGroup(t.Context())
	g.Go("waits", untilDone)
	g.Stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestPanicIsAnError(t *testing.T) {
	g := NewGroup(t.Context())
	g.Go("panics", func(context.Context) error { panic("ouch") })
	if err := g.Wait(); err == nil || !strings.Contains(err.Error(), "panics: panic: ouch") {
		t.Errorf("got %v", err)
	}
}

func TestSignals(t *testing.T) {
	ch, reloads := make(chan os.Signal), make(chan struct{}, 1)
	stopped := false
	s := listen(t.Context(), ch, func() { reloads <- struct{}{} }, func() { stopped = true })
	ch <- syscall.SIGHUP
	<-reloads
	if s.Drain().Err() != nil {
		t.Fatal("SIGHUP must not drain")
	}
	ch <- syscall.SIGTERM
	<-s.Drain().Done()
	if s.Force().Err() != nil {
		t.Fatal("the first signal must not force")
	}
	ch <- syscall.SIGINT
	<-s.Force().Done()
	s.Close()
	s.Close()
	if !stopped {
		t.Error("Close must stop the notification")
	}
}

// TestSlowReloadDelaysNoSignal checks that SIGTERM is heard during a reload, and that SIGHUPs
// during a reload are one more.
func TestSlowReloadDelaysNoSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch, free, reloads := make(chan os.Signal), make(chan struct{}), 0
		s := listen(t.Context(), ch, func() { reloads++; <-free }, func() {})
		ch <- syscall.SIGHUP
		synctest.Wait()
		for range 3 {
			ch <- syscall.SIGHUP
		}
		ch <- syscall.SIGTERM
		<-s.Drain().Done()
		close(free)
		synctest.Wait()
		if s.Close(); reloads != 2 {
			t.Errorf("%d reloads", reloads)
		}
	})
}

func TestListenHearsTheProcess(t *testing.T) {
	reloads := make(chan struct{}, 1)
	s := Listen(t.Context(), func() { reloads <- struct{}{} })
	defer s.Close()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-reloads
}

func TestForegroundEndsWithItsTerminal(t *testing.T) {
	s := ListenForeground(t.Context())
	defer s.Close()
	for range 2 { // shells send it twice
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		<-s.Drain().Done()
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-s.Force().Done()
}

func TestHangUpNeverForces(t *testing.T) {
	ch := make(chan os.Signal)
	s := listen(t.Context(), ch, nil, func() {})
	defer s.Close()
	for range 3 {
		ch <- syscall.SIGHUP
	}
	if s.Drain().Err() == nil || s.Force().Err() != nil {
		t.Errorf("drain %v, force %v", s.Drain().Err(), s.Force().Err())
	}
}

func TestForcedStepsAreNoWarnings(t *testing.T) {
	var out bytes.Buffer
	ctx, force := context.WithCancel(t.Context())
	force()
	if err := Drain(ctx, slog.New(slog.NewTextHandler(&out, nil)), Step{Name: "waits", Run: untilDone}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
	if strings.Contains(out.String(), "WARN") || !strings.Contains(out.String(), "drain step cut short") {
		t.Errorf("log:\n%s", out.String())
	}
}

func TestDrainKeepsOrderAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var order []string
		start := time.Now()
		note := func(name string) { order = append(order, name) }
		err := Drain(t.Context(), slog.New(slog.NewTextHandler(&out, nil)),
			Step{Name: "hangs", Limit: 3 * time.Second, Run: func(ctx context.Context) error {
				note("hangs")
				return untilDone(ctx)
			}},
			Step{Name: "stores", Run: func(context.Context) error {
				note("stores")
				time.Sleep(time.Second)
				return nil
			}})
		if !errors.Is(err, context.DeadlineExceeded) || strings.Join(order, " ") != "hangs stores" {
			t.Errorf("got %v after %v", err, order)
		}
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("took %s", took)
		}
		if !strings.Contains(out.String(), "step=stores took=1s") {
			t.Errorf("log:\n%s", out.String())
		}
	})
}
