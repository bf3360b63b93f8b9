//go:build linux

package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"golang.org/x/sys/unix"
)

// Item names a block and says how to keep it.
type Item struct {
	Addr      block.Addr
	Namespace string       // canonical text of a model's namespace; its ID is Addr.Model
	Parent    block.Digest // zero: none
	Expires   time.Time    // zero: never
	Durable   bool         // return only when the block is on disk, written and synced; else ErrNotDurable
	IfAbsent  bool         // refuse with ErrExists if the address has a block
	CheckCRC  bool         // refuse with ErrCorrupt unless the payload has the checksum CRC
	CRC       uint32
}

// segment is staging memory. The client writes it, and the daemon reads it on request.
type segment struct {
	id   uint32
	data []byte
}

func (g *segment) unmap() { _ = unix.Munmap(g.data) }

// Put stores a copy of payload.
func (c *Client) Put(ctx context.Context, it Item, payload []byte) (Info, error) {
	return c.PutFrom(ctx, it, len(payload), func(b []byte) error {
		copy(b, payload)
		return nil
	})
}

// PutFrom stores a block of length bytes. fill writes them straight into memory that the daemon
// reads. The memory is not cleared before.
func (c *Client) PutFrom(ctx context.Context, it Item, length int, fill func(b []byte) error) (Info, error) {
	d, err := c.Stage(ctx, length)
	if err != nil {
		return Info{}, err
	}
	defer d.Abort()
	if err := fill(d.Bytes()); err != nil {
		return Info{}, err
	}
	return d.Commit(ctx, it)
}

// Draft is staging memory for a block being written.
type Draft struct {
	client *Client
	socket *socket
	g      *segment // nil: committed or aborted
	length int
}

// Stage returns memory for a block of length bytes. End it with Commit or Abort.
func (c *Client) Stage(ctx context.Context, length int) (*Draft, error) {
	s, err := c.pool.get(ctx)
	if err != nil {
		return nil, err
	}
	g, err := s.stage(ctx, length)
	c.done(s, err)
	if err != nil {
		return nil, err
	}
	return &Draft{c, s, g, length}, nil
}

// Bytes returns the memory, uncleared. The memory is valid until Commit or Abort.
func (d *Draft) Bytes() []byte { return d.g.data[:d.length:d.length] }

// Commit stores the contents of Bytes. The Draft is of no more use afterwards, even after an error.
// One goroutine at a time may use a Draft.
func (d *Draft) Commit(ctx context.Context, it Item) (Info, error) {
	if d.g == nil {
		return Info{}, ErrClosed
	}
	err := d.client.check(&it)
	if err == nil {
		err = d.client.pool.take(ctx, d.socket)
	}
	if err != nil {
		d.Abort()
		return Info{}, err
	}
	g := d.g
	d.g = nil
	info, err := d.socket.commit(ctx, &it, g, d.length)
	d.socket.keep(g, err != nil)
	d.client.done(d.socket, err)
	return info, err
}

// Abort returns the memory. After Commit it does nothing.
func (d *Draft) Abort() {
	if d.g != nil {
		d.socket.keep(d.g, false)
		d.g = nil
	}
}

// check checks that the item's address fits its namespace.
func (c *Client) check(it *Item) error {
	n := c.namespace.Load()
	if n == nil || n.text != it.Namespace {
		n = &named{it.Namespace, block.IDOf(it.Namespace)}
		c.namespace.Store(n)
	}
	if n.id != it.Addr.Model {
		return fmt.Errorf("%w: %q is not that of the address", block.ErrNamespace, it.Namespace)
	}
	return nil
}

// stage finds a segment of at least length bytes, or asks the daemon for one.
func (s *socket) stage(ctx context.Context, length int) (*segment, error) {
	if length < 0 || length > int(s.welcome.MaxValue) {
		return nil, fmt.Errorf("%w: %d bytes, %d are allowed", ErrTooLarge, length, s.welcome.MaxValue)
	}
	if g := s.spare(length); g != nil {
		return g, nil
	}
	g, err := s.newSegment(ctx, length)
	if errors.Is(err, ErrQuota) && s.dropSpares() {
		g, err = s.newSegment(ctx, length)
	}
	return g, err
}

// spare returns the smallest kept segment that is large enough.
func (s *socket) spare(length int) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := -1
	for i, g := range s.segments {
		if len(g.data) >= length && (best < 0 || len(g.data) < len(s.segments[best].data)) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	g := s.segments[best]
	s.segments = slices.Delete(s.segments, best, best+1)
	return g
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

// commit asks the daemon to take a block from a segment.
func (s *socket) commit(ctx context.Context, it *Item, g *segment, length int) (Info, error) {
	q := frame.Commit{Segment: g.id, Length: uint32(length), CRC: it.CRC, Layer: it.Addr.Layer, Digest: it.Addr.Digest,
		Parent: it.Parent}
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
	s.begin(frame.OpCommit, len(it.Namespace))
	s.out = append(frame.AppendCommit(s.out, &q), it.Namespace...)
	h, body, err := s.exchange(ctx)
	if err == nil {
		err = errorOf(h.Status)
	}
	if err != nil {
		return Info{}, err
	}
	return infoOf(frame.ParseInfo(body, 0)), nil
}

// keep keeps a segment for the next put. keep returns the segment to the daemon if the client keeps
// too much already, or if the daemon may still be reading it.
func (s *socket) keep(g *segment, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := len(g.data)
	for _, other := range s.segments {
		kept += len(other.data)
	}
	switch {
	case s.dead.Load():
		g.unmap()
	case busy || kept > s.client.opt.KeepStaging:
		s.drop(g)
	default:
		s.segments = append(s.segments, g)
	}
}

// drop returns a segment with the next request. The caller holds mu.
func (s *socket) drop(g *segment) {
	g.unmap()
	s.dropped = append(s.dropped, g.id)
}

// dropSpares returns all unused segments. dropSpares returns true if there were any.
func (s *socket) dropSpares() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		s.drop(g)
	}
	n := len(s.segments)
	s.segments = nil
	return n > 0
}
