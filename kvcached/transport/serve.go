package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// operation is a request that is being answered. A TLS connection uses one operation for all of its
// requests, one after the other.
type operation struct {
	flow
	link    *link
	r       wire.Reader
	f       wire.Frame // the request; its byte strings are parts of r
	invalid error      // why the request is no valid frame
	left    uint64     // bytes of the request's body that are still unread
	stamp   wire.Stamp // last purge that this host's blocks were checked against when the request was admitted
	head    []byte     // head of the answer, followed by a small body
	addrs   []block.Addr

	session *session // session of a Grant, or the one that a Connect began; nil: none
	grant   uint64   // grant that the operation began; 0: none
}

// operations keeps unused operations with their buffers.
var operations = sync.Pool{New: func() any { return &operation{head: make([]byte, 0, wire.MaxHead+smallBody)} }}

// smallBody is how much of a body is copied behind its head, so that one write and one packet carry
// both.
const smallBody = 8 << 10

// maxKept is the largest buffer of addresses that is kept.
const maxKept = 256

func (op *operation) reset(p *link, st duplex) {
	op.link, op.flow = p, flow{st, p.s.o.Bandwidth, p.s.o.Stall}
	op.r.Reset(st)
	op.invalid, op.left = nil, 0
}

func (op *operation) free() {
	op.link, op.flow = nil, flow{}
	op.r.Reset(nil)
	op.f, op.session, op.grant = wire.Frame{}, nil, 0
	if cap(op.addrs) > maxKept {
		op.addrs = nil
	}
	operations.Put(op)
}

// next reads the next request.
func (op *operation) next() error {
	op.left, op.session, op.grant, op.stamp = 0, nil, 0, wire.Stamp{}
	if err := op.r.Next(&op.f); err == io.ErrUnexpectedEOF {
		return errCut
	} else if err != nil {
		return err
	}
	op.left = op.f.Body
	_ = op.SetReadDeadline(time.Time{})
	return nil
}

// serve carries out the request and answers it. After an error the stream is useless.
func (op *operation) serve(parent context.Context) error {
	s := op.link.s
	ctx, cancel := context.WithTimeout(parent, op.patience())
	defer cancel()
	answered := false
	err := op.admit()
	if err == nil {
		answered, err = op.admitted(context.WithValue(ctx, remoteKey{}, op.link.remote))
	}
	if err != nil || parent.Err() != nil {
		op.untold()
	}
	switch {
	case errors.Is(err, errStream) && errors.Is(err, os.ErrDeadlineExceeded):
		s.count.stalled.Add(1)
		return err
	case errors.Is(err, errStream), parent.Err() != nil:
		s.count.gaveUp.Add(1)
		return errors.Join(err, parent.Err())
	}
	status := statusOf(err)
	s.count.done(op.f.Op, status)
	if status == wire.Internal {
		s.failed(op.f.Op, op.link.remote, err)
	}
	if answered {
		return err
	}
	return op.answer(ctx, &wire.Frame{Status: status}, nil)
}

// failed logs an operation that failed for a reason which the peer does not learn.
func (s *Server) failed(op wire.Op, r Remote, err error) {
	s.warn("failed "+op.String(), "operation failed", "op", op, "peer", r.Host, "role", r.Role, "error", err)
}

// errStream marks failures of the network, or of the peer, on the stream.
var errStream = errors.New("stream broke")

// errCut says that the stream ended in the middle of a request.
var errCut = fmt.Errorf("%w: it ends too early", wire.BadFrame)

// patience returns how long the operation may take.
func (op *operation) patience() time.Duration {
	most := op.link.s.o.OpTimeout
	if op.invalid == nil && op.f.DeadlineMS != 0 {
		return min(most, time.Duration(op.f.DeadlineMS)*time.Millisecond)
	}
	return most
}

// admit tells whether the request may be carried out.
func (op *operation) admit() error {
	if op.invalid != nil {
		return op.invalid
	}
	if err := op.f.Check(); err != nil {
		return err
	}
	if !op.link.s.o.Allow(op.link.remote.Role, op.f.Op) {
		op.forbidden()
		return wire.Forbidden
	}
	if op.link.s.closing.Load() && begins(&op.f) {
		return wire.Busy
	}
	return nil
}

// admitted carries out the request within the limits.
func (op *operation) admitted(ctx context.Context) (answered bool, err error) {
	s, h := op.link.s, op.link.host
	if h.ops.Add(1) > int64(s.o.MaxOps) {
		h.ops.Add(-1)
		return false, wire.Busy
	}
	defer h.ops.Add(-1)
	if err := op.compare(); err != nil {
		return false, err
	}
	switch op.f.Op {
	case wire.Ping:
		return true, op.answer(ctx, &wire.Frame{}, nil)
	case wire.Get:
		return op.get(ctx)
	case wire.Put:
		return false, op.put(ctx)
	}
	body, err := op.small(ctx)
	if err != nil {
		return false, err
	}
	return true, op.answer(ctx, &wire.Frame{CRC: block.Sum(body)}, body)
}

// compare notes this host's stamp. A peer whose stamp has another history gets no block, because
// neither side could tell whether a block is older than a purge.
func (op *operation) compare() error {
	op.stamp = op.link.s.o.Stamp()
	asked := op.f.Stamp()
	if op.f.Op.Stamped() && op.f.Op != wire.Put && asked.History != 0 && op.stamp.History != 0 &&
		asked.History != op.stamp.History {
		if op.f.Op == wire.Grant { // for a Grant, a miss would end the session
			return wire.Busy
		}
		return fmt.Errorf("%w: the two hosts number purges differently", wire.Miss)
	}
	return nil
}

// addr returns the address of the block in the head.
func (op *operation) addr() (block.Addr, error) {
	if len(op.f.Namespace) == 0 {
		return block.Addr{}, fmt.Errorf("%w: no namespace", wire.BadFrame)
	}
	return block.Addr{Digest: op.f.Digest, Model: block.IDOf(string(op.f.Namespace)), Layer: op.f.Layer}, nil
}

func (op *operation) get(ctx context.Context) (answered bool, err error) {
	a, err := op.addr()
	if err != nil {
		return false, err
	}
	b, err := op.link.s.o.Handler.Get(ctx, a)
	if err != nil {
		return false, err
	}
	defer b.Release()
	found, payload := b.Found(), b.Bytes()
	body := op.f.Range(payload)
	release, err := op.hold(len(body))
	if err != nil {
		return false, err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	f := wire.Frame{Offset: op.f.Offset, Len: uint64(len(body)), CRC: found.CRC, Total: uint64(len(payload)),
		Parent: found.Item.Parent, Expires: found.Item.Expires, Key: found.Item.Key, Attr: found.Item.Attr}
	if op.f.Flags&wire.RangeSum != 0 {
		f.Flags, f.CRC = wire.RangeSum, block.Sum(body)
	}
	if err := op.answer(ctx, &f, body); err != nil {
		return true, err
	}
	op.link.s.count.sent.Add(uint64(len(body)))
	op.link.s.keyRead(found.Item.Namespace)
	return true, nil
}

func (op *operation) put(ctx context.Context) error {
	a, err := op.addr()
	if err != nil {
		return err
	}
	if _, err := block.ParseNamespace(string(op.f.Namespace)); err != nil {
		return fmt.Errorf("%w: %w", wire.BadFrame, err)
	}
	s, n := op.link.s, int(op.f.Len)
	release, err := op.hold(n)
	if err != nil {
		return err
	}
	defer release()
	it := Item{Addr: a, Namespace: string(op.f.Namespace), Parent: op.f.Parent, Expires: op.f.Expires,
		Key: clone(op.f.Key), Attr: clone(op.f.Attr)}
	d, err := s.o.Handler.Create(ctx, it, n)
	if err != nil {
		return err
	}
	defer d.Abort()
	err = op.receive(ctx, d.Bytes(), func(part []byte) { d.Filled(len(part)) })
	if err != nil {
		return err
	}
	s.count.received.Add(uint64(n))
	return d.Commit(ctx, Commit{CRC: op.f.CRC, Durable: op.f.Flags&wire.Durable != 0,
		IfAbsent: op.f.Flags&wire.IfAbsent != 0, Stamp: op.f.Stamp()})
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// small carries out requests without a block in the request or in the answer.
func (op *operation) small(ctx context.Context) ([]byte, error) {
	release, err := op.holdQuestion(int(op.f.Body))
	if err != nil {
		return nil, err
	}
	defer release()
	body := make([]byte, op.f.Body)
	if err := op.receive(ctx, body, func([]byte) {}); err != nil {
		return nil, err
	}
	if block.Sum(body) != op.f.CRC {
		return nil, wire.Corrupt
	}
	h := op.link.s.o.Handler
	if op.f.Op == wire.Announce {
		a, err := wire.ParseAnnouncement(body)
		if err != nil {
			return nil, err
		}
		receipt, err := h.Announce(ctx, a, op.f.Flags&wire.Snapshot != 0)
		return receipt.Append(nil), err
	}
	if op.f.Op.Grants() {
		return op.grants(ctx, body)
	}
	switch op.f.Op {
	case wire.Expire:
		return op.expire(ctx, body)
	case wire.Purge:
		return purge(ctx, h, body)
	}
	if op.addrs, err = wire.ParseAddrs(body, op.addrs[:0]); err != nil {
		return nil, err
	}
	switch op.f.Op {
	case wire.Stat:
		out := make([]wire.Info, len(op.addrs))
		err := h.Stat(ctx, op.addrs, out)
		return wire.AppendInfos(nil, out, op.f.Flags&wire.Expiries != 0), err
	case wire.Delete:
		out := make([]bool, len(op.addrs))
		err := h.Delete(ctx, op.addrs, out)
		return wire.AppendBools(nil, out), err
	case wire.Locate:
		l, err := h.Locate(ctx, op.addrs)
		if err != nil {
			return nil, err
		}
		return l.Append(nil), nil
	}
	return nil, wire.UnknownOp
}

// purge carries out a Purge, or answers the question for the list if body is empty.
func purge(ctx context.Context, h Handler, body []byte) ([]byte, error) {
	if len(body) == 0 {
		list, fresh, err := h.Purges(ctx)
		return wire.AppendPurges(nil, list, fresh), asStatus(err)
	}
	blocks, err := h.Purge(ctx, body)
	return (&wire.Reply{Number: uint64(blocks)}).Append(nil), asStatus(err)
}

func (op *operation) expire(ctx context.Context, body []byte) ([]byte, error) {
	o, err := wire.ParseOrder(body)
	if err != nil {
		return nil, err
	}
	there := make([]bool, len(o.Addrs))
	err = op.link.s.o.Handler.Expire(ctx, o.Addrs, o.Moment, there)
	return (&wire.Reply{Marks: wire.AppendBools(nil, there)}).Append(nil), err
}

// receive reads the request's body.
func (op *operation) receive(ctx context.Context, p []byte, filled func(part []byte)) error {
	defer whenDone(ctx, func() { _ = op.SetReadDeadline(past) })()
	err := op.flow.receive(ctx, &op.r, p, func(part []byte) {
		op.left -= uint64(len(part))
		filled(part)
	})
	return streamError(ctx, err)
}

// streamError translates an error of the stream for the operation.
func streamError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCut
	}
	return fmt.Errorf("%w: %w", errStream, err)
}

// answer completes f and sends it with its body.
func (op *operation) answer(ctx context.Context, f *wire.Frame, body []byte) error {
	f.Version, f.Op, f.Request, f.Body = wire.Version, op.f.Op, op.f.Request, uint64(len(body))
	f.Digest, f.Layer, f.Namespace = op.f.Digest, op.f.Layer, op.f.Namespace
	if op.stamp.History == op.f.Stamp().History {
		f.Answer(op.stamp)
	}
	if op.invalid != nil { // parts of an invalid frame may be rubbish
		f.Digest, f.Layer, f.Namespace = block.Digest{}, 0, nil
	}
	op.head = f.Append(op.head[:0])
	n := min(len(body), smallBody)
	op.head, body = append(op.head, body[:n]...), body[n:]
	_ = op.SetWriteDeadline(time.Now().Add(op.stall))
	if _, err := op.Write(op.head); err != nil {
		return streamError(ctx, err)
	}
	if len(body) == 0 {
		return nil
	}
	defer whenDone(ctx, func() { _ = op.SetWriteDeadline(past) })()
	return streamError(ctx, op.send(ctx, body))
}

// drain reads the unread rest of the request's body, so that the next request can come.
func (op *operation) drain() error {
	var scrap [16 << 10]byte
	end := time.Now().Add(op.stall)
	for op.left > 0 {
		_ = op.SetReadDeadline(end)
		n, err := io.ReadFull(&op.r, scrap[:min(op.left, uint64(len(scrap)))])
		op.left -= uint64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// counters count for Stats.
type counters struct {
	byOp                               [wire.Ops]atomic.Uint64
	byStatus                           [wire.Statuses]atomic.Uint64
	unknown                            atomic.Uint64
	sent, received                     atomic.Uint64
	refusedConns, acceptErrors, gaveUp atomic.Uint64
	stalled                            atomic.Uint64
	handshakes                         atomic.Uint64
	conns                              atomic.Int64
}

func (c *counters) done(op wire.Op, s wire.Status) {
	if op.Known() {
		c.byOp[op].Add(1)
	} else {
		c.unknown.Add(1)
	}
	if int(s) < wire.Statuses {
		c.byStatus[s].Add(1)
	}
}
