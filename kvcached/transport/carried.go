package transport

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// carried counts the traffic over a lane.
type carried struct {
	pulls, received, puts, sent, failed, fell atomic.Uint64

	last atomic.Pointer[failure] // nil: none yet
}

// failure is the reason why an operation failed, or why a lane does not get through.
type failure struct {
	err error
	at  time.Time
}

// note keeps err as the last failure. An error that only says that a lane rests does not replace an
// earlier failure.
func (c *carried) note(err error) {
	if !errors.Is(err, errResting) || c.last.Load() == nil {
		c.last.Store(&failure{err, time.Now()})
	}
}

// try runs an operation on a lane, and notes a failure to connect.
func (p *Peer) try(which int, fn func(l lane, which int) error) error {
	err := fn(p.lanes[which], which)
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrHandshake) {
		p.carried[which].note(err)
	}
	return err
}

// carry runs an operation on a block on the best lane, or else on the other lane, and counts
// failures. The caller has begun an operation. An answer without the block, or a caller that left,
// is no failure.
func (p *Peer) carry(large bool, fn func(l lane, which int) error) error {
	used, failed := -1, error(nil)
	err := p.over(large, func(l lane, which int) error {
		if used >= 0 {
			p.carried[used].fell.Add(1)
			p.carried[used].note(failed)
		}
		used, failed = which, fn(l, which)
		return failed
	})
	if blamed(err) {
		p.carried[used].failed.Add(1)
		p.carried[used].note(err)
	}
	return err
}

// blamed tells whether a lane or the peer is to blame for an operation's failure.
func blamed(err error) bool {
	var status wire.Status
	answered := errors.As(err, &status) && status != wire.Deadline && status != wire.Corrupt && status != wire.Internal
	return err != nil && !answered && !errors.Is(err, errCaller) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, ErrClosed)
}

// told returns the counts for PeerStatus.
func (c *carried) told(over Lane) Carried {
	out := Carried{Lane: over, Pulls: c.pulls.Load(), Received: c.received.Load(), Puts: c.puts.Load(),
		Sent: c.sent.Load(), Failed: c.failed.Load(), Fell: c.fell.Load()}
	if f := c.last.Load(); f != nil {
		out.Error, out.At = f.err.Error(), f.at
	}
	return out
}

// pulled counts a block that came over a lane.
func (p *Peer) pulled(which, n int, took time.Duration) {
	if p.pool.o.Pulled != nil {
		p.pool.o.Pulled([]Lane{QUIC, TLS, RDMA}[which], took)
	}
	p.carried[which].pulls.Add(1)
	p.carried[which].received.Add(uint64(n))
}
