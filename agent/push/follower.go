package push

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// follower is one router's stream. What stands below server is guarded by its mu.
type follower struct {
	server    *Server
	wake      chan struct{} // signalled, never blocked on, when something has moved
	told      *Reading      // last; nil: nothing
	toldAt    time.Time
	moved     *Reading  // the latest that differs from told; nil: none
	unmoved   time.Time // the last look before moved that did not differ; zero: there is none
	coalesced uint64    // readings that moved and were replaced
}

// offer takes the latest reading. before is when the look before it was.
func (f *follower) offer(r *Reading, before time.Time) {
	switch {
	case f.told == nil:
		return
	case !r.differs(f.told):
		f.moved = nil
		return
	case f.moved == nil:
		f.unmoved = before
	default:
		f.coalesced++
		f.server.coalesced.Add(1)
	}
	f.moved = r
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// wait returns true when there is something to answer: something has moved and MinInterval has passed since the last answer, or keepInterval has since the request.
func (f *follower) wait(ctx context.Context, asked time.Time) bool {
	timer := time.NewTimer(keepInterval)
	defer timer.Stop()
	for {
		left, due := f.due(time.Now(), asked)
		if due {
			return true
		}
		timer.Reset(left)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		case <-f.wake:
		}
	}
}

// due tells whether to answer now, or how long to wait if nothing happens.
func (f *follower) due(now, asked time.Time) (left time.Duration, due bool) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	if f.told == nil {
		return 0, true
	}
	left = keepInterval - now.Sub(asked)
	if f.moved != nil {
		left = MinInterval - now.Sub(f.toldAt)
	}
	return left, left <= 0
}

// answer says how the node is and remembers that.
func (f *follower) answer(latest *Reading, now, asked time.Time) *pb.FollowResponse {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	m := latest.message(now)
	if f.moved != nil && latest.differs(f.told) && !f.unmoved.IsZero() {
		m.UnmovedUs = micros(now, f.unmoved)
	}
	f.told, f.toldAt, f.moved = latest, now, nil
	return &pb.FollowResponse{Nodes: []*pb.NodeLoad{m}, HeldUs: uint64(max(now.Sub(asked), 0) / time.Microsecond), Coalesced: f.coalesced}
}

// differs tells whether something has moved by more than its threshold, or has become known or unknown.
func (r *Reading) differs(told *Reading) bool {
	return moved(r.InFlight, told.InFlight, 1, 0.02) || moved(r.Queue, told.Queue, 1, 0.02) ||
		moved(r.CPUPct, told.CPUPct, 5, 0.05) || moved(r.RunqUsP99, told.RunqUsP99, 100, 0.2) ||
		moved(r.SRTTUsP50, told.SRTTUsP50, 50, 0.1) || moved(r.RetransPPM, told.RetransPPM, 100, 0.2) ||
		moved(r.SMPct, told.SMPct, 1, 0) || moved(r.Watts, told.Watts, 2, 0.02) || moved(r.WattsAvg30, told.WattsAvg30, 2, 0.02)
}

// moved tells whether a has left the neighbourhood of b: by the threshold at least, and by that share of b.
func moved(a, b cluster.Gauge, threshold, ratio float64) bool {
	av, aKnown := a.Get()
	bv, bKnown := b.Get()
	if !aKnown || !bKnown {
		return aKnown != bKnown
	}
	return math.Abs(av-bv) >= max(threshold, ratio*bv)
}

// limited closes connections as soon as it has accepted them, if there are twice as many as streams, and 16 more.
type limited struct {
	net.Listener
	server *Server
	open   atomic.Int64
}

func newLimited(l net.Listener, s *Server) *limited { return &limited{Listener: l, server: s} }

// Accept waits for the next connection.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= int64(2*l.server.o.Streams+16) {
			return &counted{Conn: c, open: &l.open}, nil
		}
		l.open.Add(-1)
		l.server.refused.Add(1)
		_ = c.Close()
	}
}

// counted is a connection that gives its place back when it is closed.
type counted struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// Close ends the connection.
func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
