package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// tlsLane keeps connections to one peer. Each connection serves one operation at a time. The
// connection that was used last is used first.
type tlsLane struct {
	address string
	tls     *tls.Config
	dialer  func(ctx context.Context, address string) (net.Conn, error)
	idle    time.Duration // a connection that is unused for longer is closed
	timeout time.Duration // time to dial, with the handshake
	count   *laneCounters
	tokens  chan struct{} // one for each connection that may be open

	mu     sync.Mutex
	unused []*tlsExchange // oldest first
	all    map[*tlsExchange]struct{}
	back   backoff
	closed bool
}

func newTLSLane(l *tlsLane, most int) *tlsLane {
	l.tokens, l.all = make(chan struct{}, most), map[*tlsExchange]struct{}{}
	return l
}

func (l *tlsLane) open(ctx context.Context, _ int) (exchange, error) {
	select {
	case l.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	x, err := l.take()
	if x == nil && err == nil {
		x, err = l.dial(ctx)
	}
	if err != nil {
		<-l.tokens
		return nil, err
	}
	return x, nil
}

// take returns a kept connection, or nil if there is none.
func (l *tlsLane) take() (*tlsExchange, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.expire()
	n := len(l.unused)
	if n == 0 {
		return nil, l.back.check()
	}
	x := l.unused[n-1]
	l.unused = l.unused[:n-1]
	x.old = true
	return x, nil
}

func (l *tlsLane) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.unused)
	return len(l.all) > n || n > 0 && time.Since(l.unused[n-1].used) < l.idle
}

// expire closes connections that were unused for too long. The peer closes them a little later.
func (l *tlsLane) expire() {
	n := 0
	for _, x := range l.unused {
		if time.Since(x.used) < l.idle {
			break
		}
		l.drop(x)
		n++
	}
	l.unused = append(l.unused[:0], l.unused[n:]...)
}

// drop closes a connection. The caller holds mu.
func (l *tlsLane) drop(x *tlsExchange) {
	_ = x.raw.Close()
	delete(l.all, x)
}

func (l *tlsLane) dial(ctx context.Context) (*tlsExchange, error) {
	begun, caller := time.Now(), ctx
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, nil)
	defer cancel()
	x, err := l.tryDial(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.count.dialErrors.Add(1)
		// The caller's time was too short, so the peer is not to blame.
		if caller.Err() != nil && time.Since(begun) < l.timeout/2 {
			return nil, context.Cause(caller)
		}
		return nil, l.back.dialled(context.Background(), err)
	}
	l.count.dials.Add(1)
	l.back = backoff{}
	if l.closed {
		_ = x.raw.Close()
		return nil, ErrClosed
	}
	l.all[x] = struct{}{}
	return x, nil
}

func (l *tlsLane) tryDial(ctx context.Context) (*tlsExchange, error) {
	raw, err := l.dialer(ctx, l.address)
	if err != nil {
		return nil, err
	}
	out := &cork{Conn: raw}
	c := &corked{tls.Client(out, l.tls), out}
	if err := shake(ctx, c.Conn); err != nil {
		_ = raw.Close()
		return nil, err
	}
	x := &tlsExchange{corked: c, raw: raw, lane: l}
	x.r.Reset(c)
	return x, nil
}

// shake does the handshake and requires this protocol. QUIC requires it by itself, TLS does not.
func shake(ctx context.Context, c *tls.Conn) error {
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	if p := c.ConnectionState().NegotiatedProtocol; p != wire.ALPN {
		return fmt.Errorf("%w: the peer speaks protocol %q (ALPN), not %s", ErrHandshake, p, wire.ALPN)
	}
	return nil
}

func (l *tlsLane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for x := range l.all {
		_ = x.raw.Close()
	}
	l.unused, l.all = nil, map[*tlsExchange]struct{}{}
}

// tlsExchange is one connection.
type tlsExchange struct {
	*corked
	raw  net.Conn
	lane *tlsLane
	r    wire.Reader
	used time.Time
	old  bool
}

func (x *tlsExchange) frames() *wire.Reader { return &x.r }
func (x *tlsExchange) reused() bool         { return x.old }
func (x *tlsExchange) abort()               { _ = x.raw.Close() }

// release keeps the connection if the next bytes on it belong to another answer.
func (x *tlsExchange) release(err error) {
	l := x.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { <-l.tokens }()
	if refused(err) || x.r.Buffered() != 0 || l.closed {
		l.drop(x)
		return
	}
	x.used = time.Now()
	l.unused = append(l.unused, x)
}

// refused tells whether the connection cannot be used again. It cannot if err is a status that says
// that the peer did not understand the request.
func refused(err error) bool {
	s, ok := err.(wire.Status)
	return err != nil && (!ok || s == wire.BadFrame || s == wire.UnsupportedVersion || s == wire.Corrupt)
}
