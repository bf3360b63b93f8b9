package rpc

import (
	"context"
	"errors"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// space is a namespace of a request.
type space struct {
	text string
	id   block.ModelID
	keys bool // a namespace of clients' keys
}

// namespace reads a canonical text. It remembers the last one.
func (s *Server) namespace(text string) (*space, error) {
	if last := s.space.Load(); last != nil && last.text == text {
		s.known(text)
		return last, nil
	}
	n, err := block.ParseNamespace(text)
	if err != nil {
		return nil, invalid("namespace: %v", err)
	}
	read := &space{text, block.IDOf(text), n.Space != ""}
	s.known(text)
	s.space.Store(read)
	return read, nil
}

// known tells the store that the client asks for blocks of this namespace.
func (s *Server) known(namespace string) {
	if s.names != nil {
		s.names.Know(namespace)
	}
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// address reads the name of one block.
func (s *Server) address(namespace string, layer uint32, digest []byte) (a block.Addr, err error) {
	if len(digest) != len(a.Digest) {
		return a, invalid("digest has %d bytes; give all 32", len(digest))
	}
	n, err := s.namespace(namespace)
	if err != nil {
		return a, err
	}
	return block.Addr{Digest: block.Digest(digest), Model: n.id, Layer: layer}, nil
}

// digestsOf reads concatenated digests without a copy.
func digestsOf(field string, b []byte, most int) ([]block.Digest, error) {
	const size = len(block.Digest{})
	switch {
	case len(b) == 0:
		return nil, invalid("%s is empty; give 32 bytes for each block", field)
	case len(b)%size != 0:
		return nil, invalid("%s has %d bytes, which is not a multiple of 32; give all of each digest", field, len(b))
	case len(b)/size > most:
		return nil, invalid("%s has %d digests; give at most %d in a call", field, len(b)/size, most)
	}
	return unsafe.Slice((*block.Digest)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size), nil
}

// batch is the part of a request that names its blocks.
type batch interface {
	GetNamespace() string
	GetLayer() uint32
	GetDigests() []byte
}

// addresses reads the names of a batch's blocks.
func (s *Server) addresses(r batch) (*space, []block.Addr, error) {
	n, err := s.namespace(r.GetNamespace())
	if err != nil {
		return nil, nil, err
	}
	digests, err := digestsOf("digests", r.GetDigests(), MaxBatch)
	if err != nil {
		return nil, nil, err
	}
	addrs := make([]block.Addr, len(digests))
	for i := range digests {
		addrs[i] = block.Addr{Digest: digests[i], Model: n.id, Layer: r.GetLayer()}
	}
	return n, addrs, nil
}

// parentOf reads a digest that may be left out.
func parentOf(b []byte) (d block.Digest, err error) {
	if len(b) != 0 && len(b) != len(d) {
		return d, invalid("parent has %d bytes; give all 32, or none where there is no parent", len(b))
	}
	copy(d[:], b)
	return d, nil
}

// bytesOf is a digest in a message; a zero digest is absent.
func bytesOf(d block.Digest) []byte {
	if d == (block.Digest{}) {
		return nil
	}
	return d[:]
}

// The bits of residency equal those of the protocol, so that sets of tiers need no translation.
// This does not compile if one differs.
var (
	_ = [1]struct{}{}[residency.Device^residency.Tiers(pb.Tier_TIER_DEVICE)]
	_ = [1]struct{}{}[residency.Host^residency.Tiers(pb.Tier_TIER_HOST)]
	_ = [1]struct{}{}[residency.Disk^residency.Tiers(pb.Tier_TIER_DISK)]
	_ = [1]struct{}{}[residency.Shared^residency.Tiers(pb.Tier_TIER_SHARED)]
	_ = [1]struct{}{}[residency.Pinned^residency.Tiers(pb.Tier_TIER_PINNED)]
)

// tiersOf is where the daemon has a block, in the protocol's bits.
func tiersOf(t store.Tiers) (out residency.Tiers) {
	if t&store.RAM != 0 {
		out |= residency.Host
	}
	if t&store.SSD != 0 {
		out |= residency.Disk
	}
	return out
}

// coded gives an error a code of the protocol, unless it has one. It hides unknown errors, which
// may name files.
func coded(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	var hosts *purge.HostsError
	if errors.As(err, &hosts) {
		return status.Error(codes.Unavailable, hosts.Public())
	}
	if refused := purge.Refused(""); errors.As(err, &refused) {
		return status.Error(codes.FailedPrecondition, refused.Error())
	}
	var disk *store.DiskError
	if errors.As(err, &disk) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		if disk.Full() {
			return status.Error(codes.ResourceExhausted, disk.Public())
		}
		return status.Error(codes.Unavailable, disk.Public())
	}
	for _, row := range []struct {
		is   error
		code codes.Code
	}{
		{store.ErrMiss, codes.NotFound},
		{store.ErrFull, codes.ResourceExhausted},
		{store.ErrQuota, codes.ResourceExhausted},
		{ram.ErrPins, codes.ResourceExhausted},
		{residency.ErrEngines, codes.ResourceExhausted},
		{store.ErrTooLarge, codes.InvalidArgument},
		{store.ErrExists, codes.AlreadyExists},
		{store.ErrNotDurable, codes.FailedPrecondition},
		{store.ErrCorrupt, codes.DataLoss},
		{store.ErrClosed, codes.Unavailable},
		{residency.ErrGap, codes.FailedPrecondition},
		{residency.ErrStale, codes.Aborted},
		{residency.ErrReport, codes.InvalidArgument},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		if errors.Is(err, row.is) {
			return status.Error(row.code, err.Error())
		}
	}
	return status.Error(codes.Internal, "the daemon failed; its log says why")
}
