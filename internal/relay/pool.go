package relay

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of PoolOptions.
const (
	DefaultMaxIdle     = 256
	DefaultMaxConns    = 16384
	DefaultIdleTimeout = 30 * time.Second
)

// PoolOptions bounds a Pool. Zero values mean the defaults.
type PoolOptions struct {
	MaxIdle     int           // idle connections kept; the oldest is closed for a newer one
	MaxConns    int           // connections in all; past it Send fails with ErrPoolFull
	IdleTimeout time.Duration // an idle connection is closed after this
	DialTimeout time.Duration // connect and TLS handshake together; default 2 s
	// Watch keeps a list of the connections in use, for Looker, and has the kernel
	// probe those on which nothing comes for keepIdle. Without it they are probed
	// as often as the system's defaults say.
	Watch bool
	// Dial replaces the network, for in-memory connections.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Pool keeps keep-alive connections to one Target and hands them out last in,
// first out, so that a burst leaves the surplus to age and be closed. It is
// safe for concurrent use.
type Pool struct {
	options PoolOptions
	to      atomic.Pointer[destination]
	peer    atomic.Pointer[netip.AddrPort] // see Peer

	mu     sync.Mutex
	idle   []*conn // oldest first
	open   int     // idle, in use and being dialed
	closed bool
	sweep  *time.Timer // set while idle is not empty

	busy  []*conn     // in use, in no order, with Watch
	turn  int         // place in busy of the connection that was looked at last
	dials []time.Time // when the connections were begun that are being made, oldest first, with Watch
}

// NewPool makes a pool; it connects on first use, or in Warm.
func NewPool(t Target, o PoolOptions) *Pool {
	p := &Pool{options: o.withDefaults()}
	p.target(newDestination(t))
	return p
}

func (o PoolOptions) withDefaults() PoolOptions {
	if o.MaxIdle <= 0 {
		o.MaxIdle = DefaultMaxIdle
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = DefaultIdleTimeout
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = defaultDialTimeout
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
		if o.Watch {
			o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext // attend sets it
		}
	}
	return o
}

// Close closes the idle connections and refuses new exchanges. Exchanges under
// way finish; their connections are closed when they do.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.takeIdle()
	p.closed = true
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// Stats counts connections: idle ones, and all of them.
func (p *Pool) Stats() (idle, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle), p.open
}

// Warm opens at most n connections, one after the other, until n wait to be used,
// or as many as the pool may keep, so that the next requests need not wait for
// connect and TLS handshake. Connections that waited before count if they still
// stand. Warm ends with the first connection that cannot be made, or with ctx, and
// returns how many it has made. A server that closes one of them before it is used
// costs a request no more than any other idle connection does: see Send.
func (p *Pool) Warm(ctx context.Context, n int) (made int, err error) {
	p.Prune()
	for ; made < n && p.wants(min(n, p.options.MaxIdle)); made++ {
		c, err := p.dial(ctx, time.Time{})
		if err != nil {
			p.release()
			return made, err
		}
		p.put(c)
	}
	return made, nil
}

// wants makes room for one more connection where fewer than n are idle.
func (p *Pool) wants(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= n || p.open >= p.options.MaxConns {
		return false
	}
	p.open++
	return true
}

// Prune closes the idle connections that the server has closed, and returns how
// many connections are left: idle, in use and being made.
func (p *Pool) Prune() (open int) {
	var dead []*conn
	p.mu.Lock()
	p.idle = slices.DeleteFunc(p.idle, func(c *conn) bool {
		gone := c.look() != peekNothing
		if gone {
			dead = append(dead, c)
		}
		return gone
	})
	p.open -= len(dead)
	open = p.open
	p.mu.Unlock()
	for _, c := range dead {
		c.close()
	}
	return open
}

// take returns an idle connection that still stands, or nil after having made
// room for a new one.
func (p *Pool) take(fresh bool) (*conn, error) {
	var now time.Time
	for {
		c, err := p.pop(fresh)
		if c == nil || err != nil {
			return nil, err
		}
		if now.IsZero() {
			now = time.Now()
		}
		if now.Sub(c.idleSince) < p.options.IdleTimeout && c.usable(now) {
			return c, nil
		}
		p.discard(c)
	}
}

func (p *Pool) pop(fresh bool) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrPoolClosed
	}
	if n := len(p.idle); n > 0 && !fresh {
		c := p.idle[n-1]
		p.idle[n-1], p.idle = nil, p.idle[:n-1]
		p.enlist(c)
		return c, nil
	}
	if p.open < p.options.MaxConns {
		p.open++
		return nil, nil
	}
	if len(p.idle) == 0 {
		return nil, ErrPoolFull
	}
	p.idle[0].close() // whose room the new one takes
	p.idle = append(p.idle[:0], p.idle[1:]...)
	return nil, nil
}

// put takes back a connection whose exchange ended cleanly.
func (p *Pool) put(c *conn) {
	c.rested(time.Now())
	p.mu.Lock()
	if p.closed || c.to != p.to.Load() {
		p.mu.Unlock()
		p.discard(c)
		return
	}
	p.strike(c)
	var oldest *conn
	if len(p.idle) >= p.options.MaxIdle {
		oldest = p.idle[0]
		copy(p.idle, p.idle[1:])
		p.idle = p.idle[:len(p.idle)-1]
	}
	p.idle = append(p.idle, c)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.options.IdleTimeout, p.expire)
	}
	p.mu.Unlock()
	if oldest != nil {
		p.discard(oldest)
	}
}

// expire closes the connections that have been idle for too long and comes
// back when the next one may be due.
func (p *Pool) expire() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	limit := time.Now().Add(-p.options.IdleTimeout)
	n := 0
	for n < len(p.idle) && !p.idle[n].idleSince.After(limit) {
		n++
	}
	old := append([]*conn(nil), p.idle[:n]...)
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	p.open -= n
	if rest == 0 {
		p.sweep = nil
	} else {
		p.sweep.Reset(p.idle[0].idleSince.Sub(limit))
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *Pool) discard(c *conn) {
	c.close()
	p.mu.Lock()
	p.strike(c)
	p.open--
	p.mu.Unlock()
}

// DropIdle closes the connections that wait to be used.
func (p *Pool) DropIdle() {
	p.mu.Lock()
	old := p.takeIdle()
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// takeIdle empties the list of idle connections. The caller holds mu.
func (p *Pool) takeIdle() []*conn {
	old := p.idle
	p.idle, p.open = nil, p.open-len(old)
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	return old
}

// release gives back the room of one connection.
func (p *Pool) release() {
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

// dial connects before deadline and within DialTimeout.
func (p *Pool) dial(ctx context.Context, deadline time.Time) (*conn, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(deadline, time.Now().Add(p.options.DialTimeout)))
	defer cancel()
	to := p.to.Load()
	socket, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	if to.TLS == nil {
		c := newConn(to, socket, socket)
		c.watch = p.options.Watch
		return c, nil
	}
	below := &wire{Conn: socket}
	secure := tls.Client(below, to.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		socket.Close()
		return nil, err
	}
	c := newConn(to, secure, socket)
	c.wire, c.watch = below, p.options.Watch
	return c, nil
}
