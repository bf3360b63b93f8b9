package request

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// End is the reason why a request was ended from outside.
type End uint32

// These are the ends of a request.
const (
	None     End = iota
	Left         // the client is gone
	Shutdown     // the router stops
	Revoked      // the rights of the client are gone
)

// Life ends all work for a request when its client leaves or the router stops. Any goroutine may
// call the methods of Life, unless a method says otherwise.
type Life struct {
	// Begin is called once, before the first exchange with a node. Cancel works only after Begin.
	// The port sets Begin; Begin may be nil.
	Begin func()

	started bool // Start has been called

	end    atomic.Uint32 // an End; set under mu
	mu     sync.Mutex
	aborts []*relay.Abort // one for each node being asked now
	over   chan struct{}  // closed at the end; made under mu by the first Wait or Await
}

// Start calls Begin, the first time only. The goroutine that owns the request makes the first call
// and calls Started. Goroutines that it starts afterwards may call Start too.
func (l *Life) Start() {
	if l.started {
		return
	}
	if l.started = true; l.Begin != nil {
		l.Begin()
	}
}

// Started says whether something may have been sent for the request.
func (l *Life) Started() bool { return l.started }

// Enter makes the end of the request cancel a, until Leave. Enter returns false if the request has
// ended.
func (l *Life) Enter(a *relay.Abort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() != None {
		return false
	}
	l.aborts = append(l.aborts, a)
	return true
}

// Leave undoes Enter. The end of the request then no longer affects a.
func (l *Life) Leave(a *relay.Abort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range l.aborts {
		if other == a {
			last := len(l.aborts) - 1
			l.aborts[i], l.aborts[last] = l.aborts[last], nil
			l.aborts = l.aborts[:last]
			return
		}
	}
}

// Cancel ends the request because the client has left.
func (l *Life) Cancel() { l.stop(Left) }

// Shutdown ends the request because the router stops.
func (l *Life) Shutdown() { l.stop(Shutdown) }

// Revoke ends the request because the client's rights are gone.
func (l *Life) Revoke() { l.stop(Revoked) }

// stop ends the request. A second call does not change the reason.
func (l *Life) stop(end End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() != None {
		return
	}
	l.end.Store(uint32(end))
	if l.over != nil {
		close(l.over)
	}
	for _, a := range l.aborts {
		if end == Left {
			a.Cancel()
		} else {
			a.Stop()
		}
	}
}

// Wait waits for d. Wait returns false if the request ends before.
func (l *Life) Wait(d time.Duration) bool {
	over, ok := l.overOf()
	if !ok {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-over:
		return false
	}
}

// Await waits until done is closed. Await returns false if the request ends before.
func (l *Life) Await(done <-chan struct{}) bool {
	over, ok := l.overOf()
	if !ok {
		return false
	}
	select {
	case <-done:
		return true
	case <-over:
		return false
	}
}

// AwaitUntil waits until done is closed, but not after end. AwaitUntil returns false if the request
// ends before.
func (l *Life) AwaitUntil(done <-chan struct{}, end time.Time) bool {
	over, ok := l.overOf()
	if !ok {
		return false
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return true
	case <-over:
		return false
	}
}

// Acquire puts an element into slots, which may wait for at most d until slots has room. Acquire
// returns false if it has not, or if the request ends before. Those who wait get room in the order
// of their arrival.
func (l *Life) Acquire(slots chan<- struct{}, d time.Duration) bool {
	over, ok := l.overOf()
	if !ok {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-timer.C:
		return false
	case <-over:
		return false
	}
}

// overOf returns the channel over. ok is false if the request has ended.
func (l *Life) overOf() (over <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() != None {
		return nil, false
	}
	if l.over == nil {
		l.over = make(chan struct{})
	}
	return l.over, true
}

// Ended returns why the request was ended, or None.
func (l *Life) Ended() End { return End(l.end.Load()) }
