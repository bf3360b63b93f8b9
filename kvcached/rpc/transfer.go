package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// sendPiece is how many bytes Get puts into a message. gRPC holds up to four messages of a stream
// whose client does not read. With pieces of 1 MiB clients could make it hold 512 MiB. A piece with
// the message's head fits a size of gRPC's buffers.
const sendPiece = 32<<10 - 1024

// begin occupies one of the places until end is called.
func begin(places chan struct{}, what string) (end func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d %s are open already; try again when some have ended",
			cap(places), what)
	}
}

// Get sends a block. Each piece is copied once, into the message. gRPC may drop a message silently
// when a connection breaks, so it never gets the arena itself.
func (s *service) Get(r *pb.GetRequest, stream pb.Kv_GetServer) error {
	a, err := s.address(r.Namespace, r.Layer, r.Digest)
	if err != nil {
		return err
	}
	end, err := begin(s.transfers, "transfers")
	if err != nil {
		return err
	}
	defer end()
	b, err := s.o.Store.Get(stream.Context(), a)
	if err != nil {
		return err
	}
	defer b.Release()
	data := b.Bytes()
	if uint64(r.Offset) > uint64(len(data)) {
		return status.Errorf(codes.OutOfRange, "offset is %d, the payload has %d bytes", r.Offset, len(data))
	}
	data = data[r.Offset:]
	if r.Length > 0 {
		data = data[:min(uint64(r.Length), uint64(len(data)))]
	}
	info := b.Info()
	m := &pb.GetResponse{Header: &pb.BlockHeader{
		Namespace: r.Namespace, Layer: r.Layer, Digest: r.Digest, Parent: bytesOf(info.Item.Parent),
		Length: uint32(info.Length),
		Crc32C: info.CRC, ExpiresUnixMs: info.Item.Expires, Attr: info.Item.Attr,
	}}
	for {
		n := min(len(data), sendPiece)
		m.Data = data[:n]
		if err := stream.Send(m); err != nil {
			return err
		}
		s.stats.bytesOut.Add(uint64(n))
		if data = data[n:]; len(data) == 0 {
			return nil
		}
		m.Header = nil
	}
}

// Put takes a block.
func (s *service) Put(stream pb.Kv_PutServer) error {
	end, err := begin(s.transfers, "transfers")
	if err != nil {
		return err
	}
	defer end()
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return invalid("header is missing; send it in the first message")
	}
	if err != nil {
		return err
	}
	it, err := s.item(first.GetHeader())
	if err != nil {
		return err
	}
	length := int(first.Header.Block.Length)
	d, err := s.o.Store.Create(stream.Context(), it, length)
	if err != nil {
		return err
	}
	defer d.Abort()
	if err := s.fill(stream, d, first.Data); err != nil {
		return err
	}
	h := first.Header
	info, err := d.Commit(stream.Context(), store.CommitOptions{Durable: h.Durable, CRC: h.Block.Crc32C,
		CheckCRC: h.CheckCrc, IfAbsent: h.IfAbsent})
	if errors.Is(err, store.ErrCorrupt) {
		return invalid("header.block.crc32c is not the payload's: %v", err)
	}
	if err != nil {
		return err
	}
	return stream.SendAndClose(&pb.PutResponse{Tiers: uint32(tiersOf(info.Tiers)), Crc32C: info.CRC})
}

// item reads a header.
func (s *service) item(h *pb.PutHeader) (it store.Item, err error) {
	b := h.GetBlock()
	if b == nil {
		return it, invalid("header.block is missing; send it in the first message")
	}
	if it.Addr, err = s.address(b.Namespace, b.Layer, b.Digest); err != nil {
		return it, err
	}
	n, err := s.namespace(b.Namespace)
	if err != nil {
		return it, err
	}
	if n.keys {
		return it, invalid("namespace %q is one of keys; write those through RESP or S3", b.Namespace)
	}
	if it.Parent, err = parentOf(b.Parent); err != nil {
		return it, err
	}
	switch {
	case b.Length > block.MaxPayload:
		return it, invalid("header.block.length is %d; a payload has at most %d bytes", b.Length, block.MaxPayload)
	case len(b.Attr) > block.MaxAttr:
		return it, invalid("header.block.attr has %d bytes; at most %d are kept", len(b.Attr), block.MaxAttr)
	case b.ExpiresUnixMs < 0:
		return it, invalid("header.block.expires_unix_ms is negative; 0 means never")
	}
	it.Namespace, it.Expires, it.Attr = b.Namespace, b.ExpiresUnixMs, b.Attr
	return it, nil
}

// fill receives the payload into the arena.
func (s *service) fill(stream pb.Kv_PutServer, d *store.Draft, data []byte) error {
	rest := d.Bytes()
	length := len(rest)
	for {
		n := copy(rest, data)
		if n < len(data) {
			return invalid("data goes beyond header.block.length by %d bytes", len(data)-n)
		}
		d.Filled(n)
		s.stats.bytesIn.Add(uint64(n))
		rest = rest[n:]
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.Header != nil {
			return invalid("header came twice; send it in the first message only")
		}
		data = m.Data
	}
	if len(rest) > 0 {
		return invalid("data has %d bytes, header.block.length is %d; send all of it", length-len(rest), length)
	}
	return nil
}

// outcomeOf is an error's meaning for one block of a batch; 0: it concerns all blocks.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, store.ErrMiss):
		return Miss
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrQuota):
		return Full
	case errors.Is(err, store.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return 0
	}
	return Failed
}

// answer encodes outcomes for a message, and counts OK.
func answer(out []Outcome) (b []byte, ok uint32) {
	b = make([]byte, len(out))
	for i, o := range out {
		b[i] = byte(o)
		if o == OK {
			ok++
		}
	}
	return b, ok
}

// Bounds of the wait of a Promote.
const (
	maxWait = time.Minute
	maxFrom = 256 // bytes
)

// Wait says how long a Promote waits for blocks that no host has yet, and which host is about to
// store them.
type Wait struct {
	For  time.Duration // 0: it does not wait
	From string        // empty: unknown
}

// Promote brings blocks into RAM. Without a fleet nothing is waited for. A wait ends with serving.
func (s *service) Promote(ctx context.Context, r *pb.PromoteRequest) (*pb.TransferResponse, error) {
	wait := Wait{time.Duration(r.WaitMs) * time.Millisecond, r.From}
	switch {
	case wait.For > maxWait:
		return nil, invalid("wait_ms is %d; at most %d are waited", r.WaitMs, maxWait.Milliseconds())
	case len(wait.From) > maxFrom:
		return nil, invalid("from has %d bytes; give the host's name or address in at most %d", len(wait.From), maxFrom)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	places, what := s.transfers, "transfers"
	if wait.For > 0 {
		places, what = s.waits, "Promotes with a wait"
		defer context.AfterFunc(s.ending, cancel)() // nobody waits for blocks while serving ends
	}
	return s.move(places, what, r, func(n *space, addrs []block.Addr, out []Outcome) error {
		if s.o.Fleet != nil {
			return s.o.Fleet.Promote(ctx, n.text, addrs, wait, out)
		}
		return s.promote(ctx, addrs, out)
	})
}

// Push sends blocks to another host.
func (s *service) Push(ctx context.Context, r *pb.PushRequest) (*pb.TransferResponse, error) {
	if r.Peer == "" {
		return nil, invalid("peer is empty; give the node id of the daemon's host")
	}
	return s.move(s.transfers, "transfers", r, func(n *space, addrs []block.Addr, out []Outcome) error {
		if s.o.Fleet == nil {
			return errAlone
		}
		return s.o.Fleet.Push(ctx, r.Peer, n.text, addrs, out)
	})
}

// Pull brings blocks from another host.
func (s *service) Pull(ctx context.Context, r *pb.PullRequest) (*pb.TransferResponse, error) {
	return s.move(s.transfers, "transfers", r, func(n *space, addrs []block.Addr, out []Outcome) error {
		if s.o.Fleet == nil {
			return errAlone
		}
		return s.o.Fleet.Pull(ctx, r.Peer, n.text, addrs, out)
	})
}

var errAlone = status.Error(codes.FailedPrecondition, "this daemon is in no fleet; give it etcd's endpoints and a "+
	"certificate")

// move carries out a transfer of a batch's blocks, in one of the places.
func (s *service) move(places chan struct{}, what string, r batch,
	do func(*space, []block.Addr, []Outcome) error) (*pb.TransferResponse, error) {
	n, addrs, err := s.addresses(r)
	if err != nil {
		return nil, err
	}
	end, err := begin(places, what)
	if err != nil {
		return nil, err
	}
	defer end()
	out := make([]Outcome, len(addrs))
	if err := do(n, addrs, out); err != nil {
		return nil, err
	}
	m := &pb.TransferResponse{}
	m.Outcomes, m.Ok = answer(out)
	return m, nil
}
