package lifecycle

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Signals turns SIGINT, SIGTERM and SIGHUP into contexts and calls.
type Signals struct {
	drain, force context.Context
	close        func()
}

// Listen starts handling the process's signals. The first SIGINT or SIGTERM cancels Drain, the
// second cancels Force. SIGHUP calls reload; with a nil reload it is ignored. All SIGHUPs during a
// reload together call it once more. A slow reload delays no other signal; Close waits for it. Both
// contexts derive from ctx.
func Listen(ctx context.Context, reload func()) *Signals {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if reload == nil {
		reload = func() {}
	}
	return listen(ctx, ch, reload, func() { signal.Stop(ch) })
}

// ListenForeground is Listen for a program that ends with its terminal. SIGHUP, at the terminal's
// end, cancels Drain, and never Force, since a shell may send it twice. If SIGHUP was ignored
// before, as under nohup, it stays ignored. Until Close, a write to a closed pipe is an error and
// does not kill the program, so that the program can still clean up.
func ListenForeground(ctx context.Context) *Signals {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(ch, syscall.SIGHUP)
	}
	pipe := make(chan os.Signal, 1) // the signal is caught, and nobody reads it
	signal.Notify(pipe, syscall.SIGPIPE)
	return listen(ctx, ch, nil, func() {
		signal.Stop(ch)
		signal.Stop(pipe)
	})
}

// listen handles the signals of ch. Without reload SIGHUP cancels Drain.
func listen(ctx context.Context, ch <-chan os.Signal, reload func(), stop func()) *Signals {
	force, cancelForce := context.WithCancel(ctx)
	drain, cancelDrain := context.WithCancel(force)
	done, reloads := make(chan struct{}), make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-reloads:
				reload()
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case s := <-ch:
				switch {
				case s == syscall.SIGHUP && reload != nil:
					select {
					case reloads <- struct{}{}:
					default: // one waits
					}
				case s == syscall.SIGHUP || drain.Err() == nil:
					cancelDrain()
				default:
					cancelForce()
				}
			}
		}
	})
	closeAll := sync.OnceFunc(func() {
		stop()
		close(done)
		wg.Wait()
		cancelForce()
	})
	return &Signals{drain: drain, force: force, close: closeAll}
}

// Drain returns the context that the first SIGINT or SIGTERM cancels: stop accepting, and finish
// running requests.
func (s *Signals) Drain() context.Context { return s.drain }

// Force returns the context that the second signal cancels: end now.
func (s *Signals) Force() context.Context { return s.force }

// Close stops handling signals, waits for a running reload and releases both contexts. Signals have
// their default effect again.
func (s *Signals) Close() { s.close() }
