package relay

import (
	"context"
	"net"
	"slices"
	"time"
)

// Timeouts of the kernel for connections of a pool with Watch. The kernel probes a connection after
// keepIdle without received packets, every keepEvery. The kernel gives up a connection after
// userTimeout without an acknowledgement of data or probes. The kernel also gives up a peer that
// takes no data for userTimeout, even if the peer answers.
const (
	keepIdle    = time.Second
	keepEvery   = time.Second
	userTimeout = 15 * time.Second
	// probeAnswer is the longest time for an answer to a probe. The kernel waits at least as long
	// for an acknowledgement of data.
	probeAnswer = 200 * time.Millisecond
	// connectAnswer is the time after which Linux repeats a connection's first packet.
	connectAnswer = time.Second
)

// Link is the kernel's view of one connection that is in use or being made.
type Link struct {
	// Lost counts retransmission timeouts in a row, or unanswered probes; 0: the link is healthy.
	Lost int
	// Since is an upper bound for the age of the lost packet that raised Lost. Since is set if Lost
	// is not 0.
	Since time.Duration
	Heard time.Duration // time since the last packet from the peer

	conn *conn
}

// Never is the value of Heard for a connection that is being made.
const Never = time.Duration(1<<63 - 1)

// Cut ends the exchange on the connection with ErrSilent, and reports whether there was one.
func (l *Link) Cut() bool {
	if l.conn == nil {
		return false
	}
	e := l.conn.owner.Load()
	return e != nil && e.cut(l.conn)
}

// cut cancels e if e still uses c, since e may use another connection by now.
func (e *Exchange) cut(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c != c || e.canceled != nil {
		return false
	}
	e.canceled = ErrSilent
	e.stop()
	return true
}

// use adds a new connection to those in use.
func (p *Pool) use(c *conn) {
	p.mu.Lock()
	p.enlist(c)
	p.mu.Unlock()
}

// enlist adds c to busy. The caller holds mu.
func (p *Pool) enlist(c *conn) {
	if p.o.Watch {
		p.busy = append(p.busy, c)
		c.place = len(p.busy)
	}
}

// strike removes c from busy, if it is there. The caller holds mu.
func (p *Pool) strike(c *conn) {
	if c.place == 0 {
		return
	}
	last := len(p.busy) - 1
	moved := p.busy[last]
	p.busy[c.place-1], moved.place = moved, c.place
	p.busy[last], p.busy = nil, p.busy[:last]
	c.place = 0
}

// next appends the connections to look at: the oldest connection that is being made, the
// connections in use with one of the local ports, and at most n of all connections in use. The
// connections in use take turns.
func (p *Pool) next(links []Link, n int, ports []uint16) []Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.dials) > 0 {
		links = append(links, Link{Since: time.Since(p.dials[0]), Heard: Never})
	}
	if len(ports) > 0 {
		for _, c := range p.busy {
			if slices.Contains(ports, c.port) {
				links = append(links, Link{Heard: Never, conn: c})
			}
		}
	}
	for range min(n, len(p.busy)) {
		p.turn++
		if p.turn >= len(p.busy) {
			p.turn = 0
		}
		links = append(links, Link{Heard: Never, conn: p.busy[p.turn]})
	}
	return links
}

// reach makes a connection without TLS.
func (p *Pool) reach(ctx context.Context, to *destination) (net.Conn, error) {
	if !p.o.Watch {
		return p.o.Dial(ctx, to.Network, to.Addr)
	}
	began := time.Now()
	p.mu.Lock()
	p.dials = append(p.dials, began)
	p.mu.Unlock()
	socket, err := p.o.Dial(ctx, to.Network, to.Addr)
	p.mu.Lock()
	for i, at := range p.dials {
		if at.Equal(began) {
			p.dials = append(p.dials[:i], p.dials[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	if err == nil {
		attend(socket)
		if at, ok := socket.RemoteAddr().(*net.TCPAddr); ok {
			if known := unmapped(at.AddrPort()); p.to.Load() == to {
				p.peer.Store(&known)
			}
		}
	}
	return socket, err
}
