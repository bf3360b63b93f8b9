package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// The pause after a failed connection doubles between these bounds.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
)

// backoff spaces attempts to dial an unreachable peer.
type backoff struct {
	pause time.Duration
	until time.Time
	err   error
}

// errResting says that a lane was not tried, because it failed a moment ago.
var errResting = errors.New("not tried again yet")

func (b *backoff) check() error {
	if b.err != nil && time.Now().Before(b.until) {
		return fmt.Errorf("%w: %w: %w", ErrUnreachable, errResting, b.err)
	}
	return nil
}

// dialled notes the result of an attempt to dial.
func (b *backoff) dialled(ctx context.Context, err error) error {
	if err == nil {
		*b = backoff{}
		return nil
	}
	if ctx.Err() != nil { // the caller's time was too short, so the peer is not to blame
		return context.Cause(ctx)
	}
	b.pause = min(max(2*b.pause, firstBackoff), lastBackoff)
	if refusedHandshake(err) {
		err = fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	b.until, b.err = time.Now().Add(b.pause), err
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// quicLane keeps one connection for each stripe, each on its own UDP socket.
type quicLane struct {
	address string
	tls     *tls.Config
	config  *quic.Config
	budget  *receiveBudget
	socket  func() (net.PacketConn, error)
	count   *laneCounters
	life    context.Context // ends with close, and ends dialling
	end     context.CancelFunc
	slots   []*slot
	watch   sync.WaitGroup // waits for connections to end
	live    atomic.Int64   // number of connections
}

// slot is one connection. The holder of free's token may use the other fields.
type slot struct {
	free chan struct{}
	t    *quic.Transport
	conn *quic.Conn
	back backoff
}

func newQUICLane(l *quicLane, stripes int) *quicLane {
	l.life, l.end = context.WithCancel(context.Background())
	for range stripes {
		s := &slot{free: make(chan struct{}, 1)}
		s.free <- struct{}{}
		l.slots = append(l.slots, s)
	}
	return l
}

func (l *quicLane) open(ctx context.Context, stripe int) (exchange, error) {
	s := l.slots[uint(stripe)%uint(len(l.slots))]
	for {
		c, reused, err := l.connection(ctx, s)
		if err != nil {
			return nil, err
		}
		st, err := c.OpenStreamSync(ctx)
		switch {
		case err == nil:
			x := &quicExchange{Stream: st, lane: l, conn: c, old: reused}
			x.r = readers.Get().(*wire.Reader)
			x.r.Reset(st)
			return x, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case reused: // it has just ended
			l.lost(c)
		default:
			return nil, broken(err)
		}
	}
}

func (l *quicLane) connected() bool { return l.live.Load() > 0 }

// broken translates an error of a connection. A server refuses the client's certificate after the
// client's part of the handshake, so any use of the connection may report the refusal.
func broken(err error) error {
	if refusedHandshake(err) {
		return fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return fmt.Errorf("transport: %w", err)
}

// connection returns the slot's connection, dialling if there is none.
func (l *quicLane) connection(ctx context.Context, s *slot) (c *quic.Conn, reused bool, err error) {
	select {
	case <-s.free:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	reused = s.conn != nil && s.conn.Context().Err() == nil
	if !reused {
		err = l.dial(ctx, s)
	}
	c = s.conn
	s.free <- struct{}{}
	return c, reused, err
}

func (l *quicLane) dial(ctx context.Context, s *slot) error {
	if l.life.Err() != nil {
		return ErrClosed
	}
	if err := s.back.check(); err != nil {
		return err
	}
	c, err := l.tryDial(ctx, s)
	if l.life.Err() != nil {
		if err == nil {
			l.lost(c)
		}
		return ErrClosed
	}
	if err = s.back.dialled(ctx, err); err != nil {
		l.count.dialErrors.Add(1)
		return err
	}
	l.count.dials.Add(1)
	if !l.budget.admit(c) {
		_ = c.CloseWithError(codeRefused, "busy")
		return fmt.Errorf("%w: windows of all connections are at their bound", wire.Busy)
	}
	s.conn = c
	l.live.Add(1)
	l.watch.Go(func() {
		<-c.Context().Done()
		l.live.Add(-1)
		l.budget.drop(c)
	})
	return nil
}

func (l *quicLane) tryDial(ctx context.Context, s *slot) (*quic.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	addr, err := resolve(ctx, l.address)
	if err != nil {
		return nil, err
	}
	if s.t == nil {
		c, err := l.socket()
		if err != nil {
			return nil, err
		}
		s.t = &quic.Transport{Conn: c}
	}
	return s.t.Dial(ctx, addr, l.tls, l.config)
}

// resolve looks up the peer's address for each connection, because the peer may have moved.
func resolve(ctx context.Context, address string) (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(number))), nil
}

// lost closes a broken connection, so that its slot gets another.
func (l *quicLane) lost(c *quic.Conn) { _ = c.CloseWithError(codeDone, "") }

func (l *quicLane) close() {
	l.end()
	for _, s := range l.slots {
		<-s.free
		if s.conn != nil {
			_ = s.conn.CloseWithError(codeDone, "")
		}
		if s.t != nil {
			_ = s.t.Close()
			_ = s.t.Conn.Close()
		}
		s.free <- struct{}{}
	}
	l.watch.Wait()
}

// readers keeps buffers for the heads of answers.
var readers = sync.Pool{New: func() any { return new(wire.Reader) }}

// quicExchange is one stream.
type quicExchange struct {
	*quic.Stream
	lane *quicLane
	conn *quic.Conn
	old  bool
	r    *wire.Reader
}

func (x *quicExchange) frames() *wire.Reader { return x.r }
func (x *quicExchange) reused() bool         { return x.old }
func (x *quicExchange) abort()               { reset(x.Stream, codeGaveUp) }

func (x *quicExchange) release(err error) {
	defer readers.Put(x.r)
	defer x.r.Reset(nil)
	if err == nil {
		_ = x.Close() // the peer has been waiting for this, as long as it cannot know what was read
		_ = x.SetReadDeadline(time.Now().Add(time.Second))
		end(x.Stream)
		x.CancelRead(codeGaveUp)
		return
	}
	var status wire.Status
	if x.conn.Context().Err() == nil && !errors.As(err, &status) && isTimeout(err) {
		x.lane.lost(x.conn) // it is dead, and the keep-alives have not noticed yet
	}
	reset(x.Stream, codeGaveUp)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
