package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strings"
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
	MaxIdle        int           // idle connections kept; a newer one replaces the oldest
	MaxConnections int           // all connections; beyond it Send fails with ErrPoolFull
	Idle           time.Duration // how long an idle connection is kept
	DialTimeout    time.Duration // for connect and TLS handshake together; default 2 s
	// Watch keeps a list of the connections in use for Looker. Watch also makes the kernel probe
	// each connection that has received no packet for keepIdle. Without Watch the system's defaults
	// apply.
	Watch bool
	// Dial replaces the network, for in-memory connections.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Pool keeps keep-alive connections to one Target. The pool hands out the most recently used
// connection first, so that the surplus of a burst ages and is closed. A Pool is safe for
// concurrent use.
type Pool struct {
	o    PoolOptions
	to   atomic.Pointer[destination]
	peer atomic.Pointer[netip.AddrPort] // returned by Peer

	mu     sync.Mutex
	idle   []*conn // oldest first
	open   int     // connections that are idle, in use or being made
	closed bool
	sweep  *time.Timer // runs while idle is not empty

	busy  []*conn     // connections in use, unordered; only with Watch
	turn  int         // index in busy of the next connection to look at
	dials []time.Time // start times of the connections being made, oldest first; only with Watch
}

// NewPool makes a pool. The pool connects on first use, or in Warm.
func NewPool(t Target, o PoolOptions) *Pool {
	p := &Pool{o: o.withDefaults()}
	p.target(newDestination(t))
	return p
}

func (o PoolOptions) withDefaults() PoolOptions {
	o.MaxIdle = cmp.Or(o.MaxIdle, DefaultMaxIdle)
	o.MaxConnections = cmp.Or(o.MaxConnections, DefaultMaxConns)
	o.Idle = cmp.Or(o.Idle, DefaultIdleTimeout)
	o.DialTimeout = cmp.Or(o.DialTimeout, defaultDialTimeout)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
		if o.Watch {
			o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext // attend sets the keep-alive
		}
	}
	return o
}

// Close closes the idle connections and refuses new exchanges. Exchanges in progress finish, and
// then their connections are closed.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.takeIdle()
	p.closed = true
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// Stats returns the number of idle connections, and of all connections.
func (p *Pool) Stats() (idle, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle), p.open
}

// Warm opens at most n connections, one after the other, until n are idle or the pool may keep no
// more. The next requests then need not wait for connect and TLS handshake. Existing idle
// connections count if they are still open. Warm ends at the first failure, or with ctx, and
// returns how many connections it has made. A warm connection that the server closes before its use
// costs a request no more than any other idle connection; see Send.
func (p *Pool) Warm(ctx context.Context, n int) (made int, err error) {
	p.Prune()
	for ; made < n && p.wants(min(n, p.o.MaxIdle)); made++ {
		c, err := p.dial(ctx, time.Time{})
		if err != nil {
			p.release()
			return made, err
		}
		p.put(c)
	}
	return made, nil
}

// wants reserves room for one more connection if fewer than n are idle.
func (p *Pool) wants(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= n || p.open >= p.o.MaxConnections {
		return false
	}
	p.open++
	return true
}

// Prune closes idle connections that the server has closed. Prune returns how many connections
// remain: idle, in use and being made.
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

// take returns an open idle connection. If no idle connection is open, take makes room for a new
// connection and returns nil.
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
		if now.Sub(c.idleSince) < p.o.Idle && c.usable(now) {
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
	if p.open < p.o.MaxConnections {
		p.open++
		return nil, nil
	}
	if len(p.idle) == 0 {
		return nil, ErrPoolFull
	}
	p.idle[0].close() // makes room for the new connection
	p.idle = append(p.idle[:0], p.idle[1:]...)
	return nil, nil
}

// put takes back a connection whose exchange ended cleanly.
func (p *Pool) put(c *conn) {
	c.idled(time.Now())
	p.mu.Lock()
	if p.closed || c.to != p.to.Load() {
		p.mu.Unlock()
		p.discard(c)
		return
	}
	p.strike(c)
	var oldest *conn
	if len(p.idle) >= p.o.MaxIdle {
		oldest = p.idle[0]
		copy(p.idle, p.idle[1:])
		p.idle = p.idle[:len(p.idle)-1]
	}
	p.idle = append(p.idle, c)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.o.Idle, p.expire)
	}
	p.mu.Unlock()
	if oldest != nil {
		p.discard(oldest)
	}
}

// expire closes connections that have been idle for too long, and runs again when the next one may
// be due.
func (p *Pool) expire() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	limit := time.Now().Add(-p.o.Idle)
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

// DropIdle closes the idle connections.
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

// release releases the room of one connection.
func (p *Pool) release() {
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

// dial connects before deadline and within DialTimeout.
func (p *Pool) dial(ctx context.Context, deadline time.Time) (*conn, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(deadline, time.Now().Add(p.o.DialTimeout)))
	defer cancel()
	to := p.to.Load()
	socket, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	if to.TLS == nil {
		c := newConn(to, socket, socket)
		c.watch = p.o.Watch
		return c, nil
	}
	below := &wire{Conn: socket}
	secure := tls.Client(below, to.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		socket.Close()
		return nil, err
	}
	c := newConn(to, secure, socket)
	c.wire, c.watch = below, p.o.Watch
	return c, nil
}

// Target is the server that a Pool connects to.
type Target struct {
	Network string // "tcp" (default) or "unix"
	Addr    string // host:port, or the path of a Unix socket
	// TLS, if set, is used over the socket. ServerName defaults to the host of Addr. The TLS
	// configuration is not modified.
	TLS *tls.Config
	// Host is the Host header. Default: Addr, or "localhost" for Unix sockets.
	Host          string
	BasePath      string // prefix of every Request.Path, without a trailing slash
	Authorization string // value of the Authorization header; "": none
}

// destination is a Target with data derived from it. A destination is immutable.
type destination struct {
	Target
	fixed []byte // Host line
	auth  []byte // Authorization line, or nothing
}

func newDestination(t Target) *destination {
	t.Network = cmp.Or(t.Network, "tcp")
	if t.Host == "" {
		if t.Host = t.Addr; t.Network == "unix" {
			t.Host = "localhost"
		}
	}
	d := &destination{Target: withServerName(t), fixed: appendField(nil, "Host", t.Host)}
	if t.Authorization != "" {
		d.auth = appendField(nil, "Authorization", t.Authorization)
	}
	return d
}

func withServerName(t Target) Target {
	if t.TLS == nil {
		return t
	}
	t.TLS = t.TLS.Clone()
	if t.TLS.ServerName == "" && !t.TLS.InsecureSkipVerify {
		if host, _, err := net.SplitHostPort(t.Addr); err == nil {
			t.TLS.ServerName = host
		}
	}
	t.TLS.NextProtos = []string{"http/1.1"}
	return t
}

// appendField appends one header line. appendField drops line ends inside the value, so that a
// value can never start another field.
func appendField(dst []byte, name, value string) []byte {
	value = strings.Map(func(r rune) rune {
		if r == '\r' || r == '\n' || r == 0 {
			return -1
		}
		return r
	}, value)
	return append(append(append(append(dst, name...), ": "...), value...), "\r\n"...)
}

// Target returns the present target.
func (p *Pool) Target() Target { return p.to.Load().Target }

func (p *Pool) target(to *destination) {
	p.to.Store(to)
	p.peer.Store(nil)
	if at, err := netip.ParseAddrPort(to.Addr); err == nil && to.Network == "tcp" {
		at = unmapped(at)
		p.peer.Store(&at)
	}
}

// Retarget makes t the target from now on. Exchanges in progress finish unchanged. Earlier
// connections are not used again.
func (p *Pool) Retarget(t Target) {
	to := newDestination(t)
	p.mu.Lock()
	p.target(to)
	old := p.takeIdle()
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// Peer returns the address at the other end of the pool's connections. For a target with a host
// name, Peer returns the address of the last connection. ok is false if the address is unknown.
func (p *Pool) Peer() (at netip.AddrPort, ok bool) {
	if known := p.peer.Load(); known != nil {
		return *known, true
	}
	return at, false
}

func unmapped(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
