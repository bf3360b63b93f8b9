package relay

import (
	"net"
	"sync/atomic"
	"time"
)

// Parking says how Reply parks the connections of an event stream in Loops, and how Park parks idle
// connections. A Parking is not modified. All replies of a server may share it.
type Parking struct {
	Loops *Loops // nil: streams stay with their goroutines
	// Serve serves a connection that has left its loop, because its next request has begun to
	// arrive. Like fasthttp.Server.ServeConn, Serve closes the connection at the end.
	Serve func(net.Conn)
	// KeepAlive is how long a connection may wait in the loop for its next request.
	KeepAlive time.Duration
}

// Parkable is embedded in the type of a server's connections, or in the outermost type if the
// connections are wrapped. Only connections with a Parkable can be parked. When a handler returns,
// the server closes even a connection that the server has handed over. Close must then do nothing;
// Kept tells Close so.
type Parkable struct{ handed atomic.Int32 }

// Kept is called by Close. If Kept returns true, Close must return without doing anything.
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

// Handed reports whether a server has handed over the connection, and has not called Close yet.
func (l *Parkable) Handed() bool { return l.handed.Load() > 0 }

func (l *Parkable) hand() { l.handed.Add(1) }

// parkable is a connection with an embedded Parkable.
type parkable interface {
	net.Conn
	Kept() bool
	hand()
}

// keeper uses the connection of an exchange instead of the exchange's goroutine.
type keeper interface {
	// interrupt tells the keeper that the exchange has been canceled. interrupt may come late, so
	// serial identifies the exchange.
	interrupt(serial uint64)
}

// LoopsOptions tune Loops.
type LoopsOptions struct {
	// Threads is the number of loops. The default is GOMAXPROCS less one, and at least 1. With
	// GOMAXPROCS loops, all processors of Go's scheduler would be held by loops that sleep in the
	// kernel. The scheduler's monitor would wake every 20 us to take the processors away, which
	// costs a tenth of the CPU on two cores.
	Threads int
	// Lag gets the length of each turn of a loop in seconds. Work that becomes ready during a turn
	// waits at most this long. Lag may be nil. All threads call Lag.
	Lag func(seconds float64)
	// Panicked gets the value of a Follower's panic, which ends only its own stream. Panicked may
	// be nil.
	Panicked func(recovered any)
}
