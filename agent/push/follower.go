package push

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// follower is one router's stream. The fields below wake are guarded by server.mu.
type follower struct {
	server    *Server
	wake      chan struct{}  // signalled, never blocked on, when there is something to tell
	told      []load.Reading // last
	toldAt    time.Time      // when a change was told last; zero: nothing has been told
	moved     bool           // the latest readings differ from told
	unmoved   time.Time      // the last look before that did not differ; zero: there is none
	coalesced uint64         // looks that showed a change and were replaced
}

// offer takes the latest readings. before is when the look before them was.
func (f *follower) offer(all []load.Reading, before time.Time) {
	switch {
	case f.toldAt.IsZero():
		f.signal()
		return
	case !differ(all, f.told):
		f.moved = false
		return
	case !f.moved:
		f.unmoved = before
	default:
		f.coalesced++
		f.server.coalesced.Add(1)
	}
	f.moved = true
	f.signal()
}

// signal wakes the waiter.
func (f *follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// wait returns true when there is something to answer. That is at once where nothing has been told
// and there are readings, MinInterval after the last change that was told where something has
// moved, and keepInterval after the request at the latest.
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
	left = keepInterval - now.Sub(asked)
	switch {
	case f.toldAt.IsZero() && len(f.server.last) > 0:
		left = 0
	case f.moved:
		left = MinInterval - now.Sub(f.toldAt)
	}
	return left, left <= 0
}

// answer says how the nodes are and remembers that.
func (f *follower) answer(now, asked time.Time) *pb.FollowResponse {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	latest := f.server.last
	answer := &pb.FollowResponse{
		Nodes:     make([]*pb.NodeLoad, len(latest)),
		HeldUs:    *load.Micros(asked, now),
		Coalesced: f.coalesced,
	}
	for i := range latest {
		answer.Nodes[i] = latest[i].Load.Message(latest[i].Node, now)
		if f.moved && (i >= len(f.told) || latest[i].Load.Moved(&f.told[i].Load)) {
			answer.Nodes[i].UnmovedUs = load.Micros(f.unmoved, now)
		}
	}
	if f.moved || f.toldAt.IsZero() {
		f.toldAt = now
	}
	f.told, f.moved = append(f.told[:0], latest...), false
	return answer
}

// differ tells whether any node has moved.
func differ(all, told []load.Reading) bool {
	if len(all) != len(told) {
		return true
	}
	for i := range all {
		if all[i].Load.Moved(&told[i].Load) {
			return true
		}
	}
	return false
}

// limited closes connections as soon as it has accepted them, if there are twice as many as
// streams, and 16 more.
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
