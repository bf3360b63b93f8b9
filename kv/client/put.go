//go:build linux

package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"golang.org/x/sys/unix"
)

// Item names a block and says how to keep it.
type Item struct {
	Addr      block.Addr
	Namespace string       // canonical text of a model's namespace; the namespace's ID is Addr.Model
	Parent    block.Digest // zero: none
	// Names are the names (block.Name) of the blocks of 16 tokens before the last one that the
	// block stands for, in order. ErrNames: they are not TOKENS / 16 - 1. Without them a block of
	// more tokens does not count in routing.
	Names    []byte
	Expires  time.Time // zero: never
	Durable  bool      // return only when the block is on disk, written and synced; else ErrNotDurable
	IfAbsent bool      // refuse with ErrExists if the address has a block
	CheckCRC bool      // refuse with ErrCorrupt unless the payload has the checksum CRC
	CRC      uint32
}

// segment is staging memory. The client writes a segment, and the daemon reads the segment on
// request.
type segment struct {
	id   uint32
	data []byte
}

// keepStaging is the most staging memory that a connection keeps between puts, in bytes. Larger
// memory is returned after each put.
const keepStaging = 16 << 20

// Put stores a copy of payload.
func (c *Client) Put(ctx context.Context, it Item, payload []byte) (Info, error) {
	return c.PutFrom(ctx, it, len(payload), func(b []byte) error {
		copy(b, payload)
		return nil
	})
}

// PutFrom stores a block of length bytes. fill writes them straight into memory that the daemon
// reads. The memory is not cleared before. The put keeps one of the connections until it returns.
func (c *Client) PutFrom(ctx context.Context, it Item, length int,
	fill func(b []byte) error) (info Info, err error) {
	if block.IDOf(it.Namespace) != it.Addr.Model {
		return Info{}, fmt.Errorf("%w: %q is not that of the address", block.ErrNamespace, it.Namespace)
	}
	s, err := c.pool.get(ctx)
	if err != nil {
		return Info{}, err
	}
	defer func() { c.done(s, err) }()
	if err = s.stage(ctx, length); err != nil {
		return Info{}, err
	}
	if err = fill(s.segment.data[:length:length]); err != nil {
		return Info{}, err
	}
	info, err = s.commit(ctx, &it, length)
	if err != nil || len(s.segment.data) > keepStaging { // after an error the daemon may still read it
		s.unstage()
	}
	return info, err
}

// stage makes sure that the socket has a segment of at least length bytes.
func (s *socket) stage(ctx context.Context, length int) (err error) {
	if length < 0 || length > int(s.welcome.MaxValue) {
		return fmt.Errorf("%w: %d bytes, %d are allowed", ErrTooLarge, length, s.welcome.MaxValue)
	}
	if s.segment == nil || len(s.segment.data) < length {
		s.unstage()
		s.segment, err = s.newSegment(ctx, length)
	}
	return err
}

// unstage returns the segment with the next request.
func (s *socket) unstage() {
	if s.segment == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, s.segment.id)
	_ = unix.Munmap(s.segment.data)
	s.segment = nil
}

// sizeClass rounds up to a quarter of a power of two. Segments then fit many blocks and waste at
// most a fifth.
func sizeClass(length int) uint64 {
	const least = 64 << 10
	n := uint64(max(length, least))
	step := uint64(1) << (bits.Len64(n-1) - 1) / 4
	return min((n+step-1)/step*step, block.MaxPayload)
}

func (s *socket) newSegment(ctx context.Context, length int) (*segment, error) {
	s.begin(frame.OpStage, 0)
	s.out = binary.LittleEndian.AppendUint64(s.out, sizeClass(length))
	h, body, err := s.exchange(ctx)
	if err == nil {
		err = errorOf(h.Status)
	}
	if err != nil {
		s.closeFiles()
		return nil, err
	}
	f, err := s.file()
	if err != nil {
		s.kill()
		return nil, err
	}
	id, size := frame.ParseStaged(body)
	data, err := mapFile(f, size, unix.PROT_READ|unix.PROT_WRITE, unix.F_SEAL_SHRINK)
	if err != nil {
		s.kill()
		return nil, err
	}
	if len(data) < length {
		_ = unix.Munmap(data)
		return nil, s.nonsense()
	}
	_ = unix.Madvise(data, unix.MADV_POPULATE_WRITE) // otherwise the first put faults page by page
	return &segment{id, data}, nil
}

// commit asks the daemon to make a block of the bytes in a segment.
func (s *socket) commit(ctx context.Context, it *Item, length int) (Info, error) {
	s.text = append(s.text[:0], it.Namespace...)
	q := frame.Commit{Segment: s.segment.id, Length: uint32(length), CRC: it.CRC, Layer: it.Addr.Layer,
		Digest: it.Addr.Digest, Parent: it.Parent, Namespace: s.text, Names: it.Names}
	if !it.Expires.IsZero() {
		q.Expires = max(it.Expires.UnixMilli(), 1)
	}
	for _, f := range [...]struct {
		set  bool
		flag uint32
	}{{it.Durable, frame.Durable}, {it.IfAbsent, frame.IfAbsent}, {it.CheckCRC, frame.CheckCRC}} {
		if f.set {
			q.Flags |= f.flag
		}
	}
	if len(it.Namespace) > block.MaxNamespace {
		return Info{}, fmt.Errorf("%w: %d bytes long", block.ErrNamespace, len(it.Namespace))
	}
	if len(it.Names)%block.NameBytes != 0 || len(it.Names) > block.MaxNames*block.NameBytes {
		return Info{}, fmt.Errorf("%w: %d bytes long", ErrNames, len(it.Names))
	}
	if q.Entries() > frame.MaxBatch {
		return Info{}, fmt.Errorf("%w: %d bytes long, %d are allowed beside %d bytes of names", block.ErrNamespace,
			len(it.Namespace), frame.MaxBatch-len(it.Names), len(it.Names))
	}
	s.begin(frame.OpCommit, q.Entries())
	s.out = frame.AppendCommit(s.out, &q)
	h, body, err := s.exchange(ctx)
	if err == nil {
		err = errorOf(h.Status)
	}
	if err != nil {
		return Info{}, err
	}
	return infoOf(frame.ParseInfo(body, 0)), nil
}
