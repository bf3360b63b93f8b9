package relay

import (
	"context"
	"sync"
)

// Abort ends an attempt's operation upstream: dialing, writing, waiting or reading. Request.Abort
// names the Abort of a request. Reset makes an Abort ready for another attempt. The zero value is
// ready.
type Abort struct {
	mu       sync.Mutex
	canceled error // the reason; nil: not canceled
	exchange *Exchange
	dialing  context.CancelFunc
}

// Cancel ends the attempt in progress with ErrCanceled, and each later one when it begins. Cancel
// may be called from any goroutine, any number of times, also after the exchange was closed.
func (a *Abort) Cancel() { a.cancel(ErrCanceled) }

// Stop is like Cancel, but the client is still there. If the client's stream has begun, the client
// is told of the failure. An exchange in progress ends with ErrStopped.
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

// why returns the error with which Cancel or Stop ended the request; nil if neither was called.
func (a *Abort) why() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.canceled
}

// Reset makes a ready for another request. All exchanges of the last request must be closed, and
// nobody may call Cancel for it any more.
func (a *Abort) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.canceled, a.exchange, a.dialing = nil, nil, nil
}

// attach makes e the exchange that Cancel ends. attach returns false after Cancel or Stop.
func (a *Abort) attach(e *Exchange) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.exchange = e
	return a.canceled == nil
}

// detach undoes attach, unless another exchange has been attached since.
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

// context returns a context that Cancel ends, and its release.
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
