package relay

import (
	"context"
	"sync"
)

// Abort ends whatever an attempt is doing upstream: dialing, writing, waiting
// or reading. It is named in Request.Abort; Reset makes it ready for another
// attempt. The zero value is ready. Unlike Exchange.Cancel, a call that comes
// after the exchange was closed is harmless.
type Abort struct {
	mu       sync.Mutex
	canceled error // why; nil: it is not
	exchange *Exchange
	dialing  context.CancelFunc
}

// Cancel ends the attempt under way with ErrCanceled, and every later one at
// once. It may be called from any goroutine, any number of times.
func (a *Abort) Cancel() { a.cancel(ErrCanceled) }

// Stop is Cancel on this side's own account: the client is still there, so a
// stream that has begun is told of the failure. An exchange under way ends with
// ErrStopped.
func (a *Abort) Stop() { a.cancel(ErrStopped) }

func (a *Abort) cancel(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.canceled == nil {
		a.canceled = why
	}
	if a.dialing != nil {
		a.dialing()
	}
	if a.exchange != nil {
		a.exchange.cancel(a.canceled)
	}
}

// Canceled reports whether Cancel has been called.
func (a *Abort) Canceled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.canceled != nil
}

// why returns the error with which Cancel or Stop ended the request, nil if neither did.
func (a *Abort) why() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.canceled
}

// Reset makes a ready for another request. The exchanges of the last one must
// be closed, and nobody may still call Cancel for it.
func (a *Abort) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.canceled, a.exchange, a.dialing = nil, nil, nil
}

// attach makes e what Cancel ends; it reports false when that is too late.
func (a *Abort) attach(e *Exchange) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.exchange = e
	return a.canceled == nil
}

// detach ends attach, unless another exchange has come since.
func (a *Abort) detach(e *Exchange) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.exchange == e {
		a.exchange = nil
	}
}

// context returns one that Cancel ends, and its release.
func (a *Abort) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	if a == nil {
		return ctx, cancel
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.canceled != nil {
		cancel()
	}
	a.dialing = cancel
	return ctx, a.endDial
}

func (a *Abort) endDial() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dialing()
	a.dialing = nil
}
