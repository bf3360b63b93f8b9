package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A lane carries operations to one peer, on streams.
type lane interface {
	// get also returns how many bytes came, even if not all.
	get(ctx context.Context, g *Get) (Found, int64, error)
	put(ctx context.Context, p *Put) error
	// call sends a small body and passes the body of the answer, with the stamp of the peer's
	// blocks, to got. got must not keep the body. request is a request number of the pool; 0: the
	// next number.
	call(ctx context.Context, op wire.Op, flags wire.Flags, request uint64, body []byte, got answered) error
	connected() bool
	close()
}

// answered takes the body of an answer and its stamp, the last purge that the peer's blocks were
// checked against.
type answered func(stamp wire.Stamp, body []byte) error

// exchange is a connection, or a stream of a connection, in use for one operation.
type exchange interface {
	duplex
	frames() *wire.Reader
	reused() bool  // the connection is not new
	abort()        // ends blocked calls; may be called at any time
	release(error) // ends the use; with nil, the whole answer was read
}

// opener makes exchanges. stripe selects one of several connections.
type opener interface {
	open(ctx context.Context, stripe int) (exchange, error)
	connected() bool // a connection is open for the next exchange
	close()
}

// streams is a lane on an opener.
type streams struct {
	opener
	caps    *Bandwidth
	stall   time.Duration
	timeout time.Duration // of operations whose context has no deadline
	request *atomic.Uint64
	stamp   func() wire.Stamp // of this side
	count   *laneCounters
	stripes int          // connections for a large block
	parts   atomic.Int64 // parts of striped pulls that are running
}

// heads keeps buffers for the heads of requests, followed by a small body.
var heads = sync.Pool{New: func() any { b := make([]byte, 0, wire.MaxHead+smallBody); return &b }}

// mostAgain bounds the retries of an operation. Several kept connections may be dead.
const mostAgain = 2

// errAgain marks failures that a fresh connection may cure.
var errAgain = errors.New("connection broke")

// ask sends a request with its body. got handles the answer, whose body it reads from w.
func (l *streams) ask(ctx context.Context, stripe int, f *wire.Frame, body []byte,
	got func(w flow, a *wire.Frame, r *wire.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if f.Request == 0 {
		f.Request = l.request.Add(1)
	}
	f.Version, f.Body = wire.Version, uint64(len(body))
	if f.Op.Stamped() && f.Op != wire.Put {
		f.SetStamp(l.stamp())
	}
	for attempt := 0; ; attempt++ {
		if end, ok := ctx.Deadline(); ok {
			f.DeadlineMS = uint32(max(1, min(time.Until(end).Milliseconds(), 1<<31)))
		}
		err := l.once(ctx, stripe, f, body, got)
		if attempt < mostAgain && errors.Is(err, errAgain) && ctx.Err() == nil {
			l.count.retried.Add(1)
			continue
		}
		return err
	}
}

func (l *streams) once(ctx context.Context, stripe int, f *wire.Frame, body []byte,
	got func(flow, *wire.Frame, *wire.Reader) error) error {
	x, err := l.open(ctx, stripe)
	if err != nil {
		return err
	}
	stop := whenDone(ctx, x.abort)
	err = l.exchange(ctx, x, f, body, got)
	stop()
	x.release(err)
	return l.explain(ctx, x, err)
}

// explain translates err of an exchange for the caller.
func (l *streams) explain(ctx context.Context, x exchange, err error) error {
	var status wire.Status
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &status), errors.Is(err, errCaller):
		return err
	case refusedHandshake(err):
		return broken(err)
	case x.reused():
		return fmt.Errorf("transport: %w: %w", errAgain, err)
	}
	return fmt.Errorf("transport: %w", err)
}

// refusedHandshake tells whether err comes from the handshake. A peer's refusal of this host's
// certificate shows only in the first operation.
func refusedHandshake(err error) bool {
	var q *quic.TransportError
	var alert *net.OpError
	var bad *tls.CertificateVerificationError
	return errors.As(err, &q) && q.ErrorCode.IsCryptoError() || errors.As(err, &alert) && alert.Op == "remote error" ||
		errors.As(err, &bad) || errors.Is(err, pki.ErrRole)
}

// errCaller marks errors of functions that the caller has passed in.
var errCaller = errors.New("transport: refused by the caller")

func (l *streams) exchange(ctx context.Context, x exchange, f *wire.Frame, body []byte,
	got func(flow, *wire.Frame, *wire.Reader) error) error {
	w := flow{x, l.caps, l.stall}
	sent := l.write(ctx, w, f, body)
	if sent != nil { // a peer that refuses the body tells why
		_ = x.SetReadDeadline(time.Now().Add(time.Second))
	}
	var a wire.Frame
	r := x.frames()
	if err := r.Next(&a); err != nil {
		return errors.Join(sent, err)
	}
	if a.Status == wire.BadFrame || a.Status == wire.UnsupportedVersion {
		return a.Status
	}
	if err := a.CheckAnswer(f); err != nil {
		return err
	}
	if a.Status != wire.OK {
		return a.Status
	}
	return got(w, &a, r) // a peer that answers OK has read all that it needed
}

func (l *streams) write(ctx context.Context, w flow, f *wire.Frame, body []byte) error {
	buf := heads.Get().(*[]byte)
	defer heads.Put(buf)
	head := f.Append((*buf)[:0])
	n := min(len(body), smallBody)
	head, body = append(head, body[:n]...), body[n:]
	_ = w.SetWriteDeadline(time.Now().Add(l.stall))
	if _, err := w.Write(head); err != nil {
		return err
	}
	return w.send(ctx, body)
}

func (l *streams) put(ctx context.Context, p *Put) error {
	it := &p.Item
	f := wire.Frame{Op: wire.Put, Digest: it.Addr.Digest, Layer: it.Addr.Layer, Namespace: []byte(it.Namespace),
		Len: uint64(len(p.Payload)), Total: uint64(len(p.Payload)), CRC: p.CRC, Parent: it.Parent, Expires: it.Expires,
		Key: it.Key, Attr: it.Attr}
	f.SetStamp(p.Stamp)
	if p.Durable {
		f.Flags |= wire.Durable
	}
	if p.IfAbsent {
		f.Flags |= wire.IfAbsent
	}
	if err := checkItem(it, len(p.Payload)); err != nil {
		return err
	}
	err := l.ask(ctx, int(l.request.Load()), &f, p.Payload, func(flow, *wire.Frame, *wire.Reader) error { return nil })
	if err == nil {
		l.count.sent.Add(uint64(len(p.Payload)))
	}
	return err
}

// checkItem rejects an item that does not fit into a frame.
func checkItem(it *Item, length int) error {
	switch {
	case length > wire.MaxBody:
		return fmt.Errorf("%w: %d bytes", wire.TooLarge, length)
	case len(it.Namespace) == 0 || len(it.Namespace) > block.MaxNamespace || len(it.Key) > block.MaxKey ||
		len(it.Attr) > block.MaxAttr:
		return fmt.Errorf("%w: namespace, key or attributes are empty or too long", wire.BadFrame)
	}
	return nil
}

func (l *streams) call(ctx context.Context, op wire.Op, flags wire.Flags, request uint64, body []byte,
	got answered) error {
	f := wire.Frame{Op: op, Flags: flags, Request: request, CRC: block.Sum(body)}
	return l.ask(ctx, int(l.request.Load()), &f, body, func(w flow, a *wire.Frame, r *wire.Reader) error {
		answer := make([]byte, a.Body)
		if err := w.receive(ctx, r, answer, func([]byte) {}); err != nil {
			return err
		}
		if op != wire.Ping && block.Sum(answer) != a.CRC {
			return wire.Corrupt
		}
		return got(a.Answered(&f), answer)
	})
}

// end reads the end of a stream.
func end(r io.Reader) {
	var one [1]byte
	_, _ = r.Read(one[:])
}
