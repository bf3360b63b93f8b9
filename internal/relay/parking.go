package relay

import (
	"net"
	"sync/atomic"
	"time"
)

// Parking says how Reply may park the connections of an event stream in Loops,
// and how Park does idle ones. It is not modified, and may be shared by all
// replies of a server.
type Parking struct {
	Loops *Loops // nil: streams stay with their goroutines
	// Serve goes on serving a connection that has come back: its next request
	// has begun to arrive. It closes the connection in the end, as
	// fasthttp.Server.ServeConn does.
	Serve func(net.Conn)
	// KeepAlive is how long a connection may wait in the loop for its next
	// request.
	KeepAlive time.Duration
}

// Parkable is embedded by the type of a server's connections, the outermost one
// where they are wrapped: those that have it may be parked. The server closes a
// connection that it has handed over once its handler has returned; that Close
// must do nothing, which is what Kept is for.
type Parkable struct{ handed atomic.Int32 }

// Kept is called by Close, which must return at once, doing nothing, where it
// reports true.
func (l *Parkable) Kept() bool {
	for {
		n := l.handed.Load()
		if n == 0 {
			return false
		}
		if l.handed.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// Handed reports whether the connection has been handed over by a server that
// has not yet closed it in its turn.
func (l *Parkable) Handed() bool { return l.handed.Load() > 0 }

func (l *Parkable) hand() { l.handed.Add(1) }

// parkable is a connection with a Parkable.
type parkable interface {
	net.Conn
	Kept() bool
	hand()
}

// keeper is who uses the connection of an exchange in place of its goroutine.
type keeper interface {
	// interrupt tells it that the exchange has been canceled. It may come late:
	// serial says which exchange is meant.
	interrupt(serial uint64)
}

// LoopsOptions tune Loops.
type LoopsOptions struct {
	// Threads is the number of loops. Default: GOMAXPROCS less one, at least 1.
	// With as many as that, all of the scheduler's processors would be held by
	// loops that sleep in the kernel, and its monitor would wake every 20 us to
	// take them away: a tenth of the CPU on two cores.
	Threads int
	// Lag is told how many seconds each turn of a loop has taken: the longest
	// that something which became ready meanwhile has waited to be looked at.
	// It may be nil, and is called from all threads.
	Lag func(seconds float64)
	// Panicked is told of a panic of a Follower, which ends only its own
	// stream. It may be nil.
	Panicked func(recovered any)
}
