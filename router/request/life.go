package request

import (
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/internal/relay"
)

// End is why a request is given up from outside.
type End uint32

// Ends of a request.
const (
	None     End = iota
	Left         // the client is gone
	Shutdown     // the router stops
)

// Life ends everything that is done for a request when its client leaves or the router stops. Its
// methods may be called from any goroutine, unless they say otherwise.
type Life struct {
	// Begin is called once, before anything is sent for the request: from then on Cancel has
	// something to end. It is set by the port, and may be nil.
	Begin func()

	started bool // Start has been called

	end    atomic.Uint32 // an End; set under mu
	mu     sync.Mutex
	aborts []*relay.Abort // of what is under way: one for each node that is asked at this moment
}

// Start calls Begin, the first time. Only the goroutine that owns the request calls Start and
// Started.
func (l *Life) Start() {
	if l.started {
		return
	}
	if l.started = true; l.Begin != nil {
		l.Begin()
	}
}

// Started tells whether something may have been sent for the request.
func (l *Life) Started() bool { return l.started }

// Enter has the request's end cancel a, until Leave. It reports false where the request has ended.
func (l *Life) Enter(a *relay.Abort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() != None {
		return false
	}
	l.aborts = append(l.aborts, a)
	return true
}

// Leave undoes Enter: the end of the request does nothing to a from now on.
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

// Cancel gives the request up because the client has left.
func (l *Life) Cancel() { l.stop(Left) }

// Shutdown gives the request up because the router stops.
func (l *Life) Shutdown() { l.stop(Shutdown) }

// stop keeps the first reason.
func (l *Life) stop(end End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() != None {
		return
	}
	l.end.Store(uint32(end))
	for _, a := range l.aborts {
		if end == Shutdown {
			a.Stop()
		} else {
			a.Cancel()
		}
	}
}

// Ended is why the request was given up, None if it was not.
func (l *Life) Ended() End { return End(l.end.Load()) }
