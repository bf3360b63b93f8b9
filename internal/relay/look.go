package relay

import (
	"context"
	"net"
	"slices"
	"time"
)

// The kernel watches over the connections of a pool with Watch. It probes one on
// which nothing has come for keepIdle, every keepEvery. It gives a connection up
// that has had no acknowledgement, of data or of probes, for userTimeout. A peer
// that takes no data for as long is given up too, although it answers.
const (
	keepIdle    = time.Second
	keepEvery   = time.Second
	userTimeout = 15 * time.Second
	// probeAnswer is how long the answer to a probe may take: the kernel waits at
	// least as long for one to data.
	probeAnswer = 200 * time.Millisecond
	// connectAnswer is when Linux sends a connection's first packet again.
	connectAnswer = time.Second
)

// Link is the kernel's view of one connection in use, or of one that is being made.
type Link struct {
	// Lost counts retransmission timeouts in a row, or probes without an answer;
	// 0: all is well.
	Lost int
	// Since is how long ago the packet was sent whose loss has raised Lost, or
	// longer. It is set where Lost is not 0.
	Since time.Duration
	Heard time.Duration // how long ago a packet of the peer came last

	conn *conn
}

// Never is the Heard of a connection that is being made.
const Never = time.Duration(1<<63 - 1)

// Cut ends, with ErrSilent, the exchange that uses the connection, and reports
// whether there was one.
func (l *Link) Cut() bool {
	if l.conn == nil {
		return false
	}
	e := l.conn.owner.Load()
	return e != nil && e.cut(l.conn)
}

// cut is cancel for a caller that knows only the connection: e may long have
// another one.
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

// use enlists a new connection.
func (p *Pool) use(c *conn) {
	p.mu.Lock()
	p.enlist(c)
	p.mu.Unlock()
}

// enlist is called with mu held.
func (p *Pool) enlist(c *conn) {
	if p.options.Watch {
		p.busy = append(p.busy, c)
		c.place = len(p.busy)
	}
}

// strike takes c out of the list of those in use, if it is there. It is called with mu held.
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

// next appends to links those that are to be looked at: the oldest connection
// that is being made, those in use with one of the local ports, and at most n of
// all in use, which take turns.
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

// reach connects, TLS not included.
func (p *Pool) reach(ctx context.Context, to *destination) (net.Conn, error) {
	if !p.options.Watch {
		return p.options.Dial(ctx, to.Network, to.Addr)
	}
	began := time.Now()
	p.mu.Lock()
	p.dials = append(p.dials, began)
	p.mu.Unlock()
	socket, err := p.options.Dial(ctx, to.Network, to.Addr)
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
