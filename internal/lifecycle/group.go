// Package lifecycle starts a process's goroutines, handles its signals and shuts it down in order,
// so that nothing outlives the function that started it.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Group owns goroutines. The first goroutine that fails cancels the others. Wait returns once all
// goroutines have ended. NewGroup creates a Group.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// NewGroup returns a group whose goroutines run under a context derived from ctx. Call Wait,
// because otherwise the context is never released.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

// Context is cancelled at the first failure, by Stop, or with the parent. context.Cause returns the
// reason.
func (g *Group) Context() context.Context { return g.ctx }

// Go runs fn in a goroutine of the group. An error or a panic cancels the group, and Wait returns
// it as "name: error". context.Canceled after the group was cancelled is a normal end. Go must not
// be called after Wait has returned.
func (g *Group) Go(name string, fn func(ctx context.Context) error) {
	g.wg.Go(func() {
		err := g.call(fn)
		if err == nil || (g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			return
		}
		err = fmt.Errorf("%s: %w", name, err)
		g.mu.Lock()
		g.errs = append(g.errs, err)
		g.mu.Unlock()
		g.cancel(err)
	})
}

func (g *Group) call(fn func(ctx context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return fn(g.ctx)
}

// Stop cancels the group's context and does not wait.
func (g *Group) Stop() { g.cancel(context.Canceled) }

// Wait waits until every goroutine has ended and returns their errors joined, in order of time.
// Wait may be called more than once.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel(context.Canceled)
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}
