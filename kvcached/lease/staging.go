//go:build linux

package lease

import (
	"bytes"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/store"
	"golang.org/x/sys/unix"
)

// writer has a connection's staging segments and the namespace of its last write.
type writer struct {
	segments  []segment // at most maxSegments
	bytes     int64
	lastID    uint32
	namespace string // canonical text; empty: nothing was written
	model     block.ModelID
	names     int    // names of an object of the namespace; below 0: objects have no names
	attr      []byte // buffer for an attribute of names; nil before the first
}

// segment is memory that the client writes and the server reads. Its size is sealed, so the client
// cannot cut off bytes while the server reads them.
type segment struct {
	id   uint32
	data []byte
}

const hugePage = 2 << 20

// stage answers Stage with a new segment.
func (c *conn) stage(h frame.Header, size uint64) error {
	s, w := c.server, &c.writer
	if size == 0 || size > block.MaxPayload {
		return c.answer(h, frame.StatusTooLarge, frame.AppendStaged(nil, 0, 0))
	}
	rounded := (int64(size) + 4095) &^ 4095
	if len(w.segments) >= maxSegments || w.bytes+rounded > s.o.MaxStaging {
		s.count.refused.Add(1)
		return c.answer(h, frame.StatusQuota, frame.AppendStaged(nil, 0, 0))
	}
	if s.count.stagingBytes.Add(rounded) > s.o.MaxStagingTotal {
		s.count.stagingBytes.Add(-rounded)
		s.count.refused.Add(1)
		return c.answer(h, frame.StatusQuota, frame.AppendStaged(nil, 0, 0))
	}
	fd, data, err := newSegment(rounded)
	if err != nil {
		s.count.stagingBytes.Add(-rounded)
		if s.mayLog() {
			s.o.Logger.Error("no staging segment can be made", "bytes", rounded, "error", err)
		}
		return c.answer(h, frame.StatusInternal, frame.AppendStaged(nil, 0, 0))
	}
	defer unix.Close(fd)
	w.lastID++
	w.segments = append(w.segments, segment{w.lastID, data})
	w.bytes += rounded
	b := frame.Append(nil, frame.Header{Op: h.Op, Seq: h.Seq})
	return c.attach(frame.End(frame.AppendStaged(b, w.lastID, uint64(rounded)), 0), fd)
}

// newSegment makes a segment with all pages in place, and maps it for reading.
func newSegment(size int64) (fd int, data []byte, err error) {
	const name, flags = "cgn-kvcached-staging", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags) // kernel before 6.3
	}
	if err != nil {
		return -1, nil, fmt.Errorf("memfd: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.Ftruncate(fd, size); err != nil {
		return -1, nil, fmt.Errorf("sizing: %w", err)
	}
	if data, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return -1, nil, fmt.Errorf("mapping: %w", err)
	}
	if size >= hugePage {
		_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // an error does no harm
	}
	// Otherwise the first write to each page would wait for the kernel to find and clear it.
	if err = unix.Madvise(data, unix.MADV_POPULATE_READ); err == unix.EINVAL {
		err = unix.Fallocate(fd, 0, 0, size) // kernel before 5.14
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Munmap(data)
		return -1, nil, fmt.Errorf("sealing: %w", err)
	}
	return fd, data, nil
}

func (w *writer) find(id uint32) *segment {
	for i := range w.segments {
		if w.segments[i].id == id {
			return &w.segments[i]
		}
	}
	return nil
}

// drop frees a segment.
func (w *writer) drop(s *Server, id uint32) error {
	g := w.find(id)
	if g == nil {
		return &frame.Error{Status: frame.StatusBadFrame, Text: fmt.Sprintf("no staging segment %d", id)}
	}
	w.unmap(s, g)
	*g = w.segments[len(w.segments)-1]
	w.segments = w.segments[:len(w.segments)-1]
	return nil
}

func (w *writer) unmap(s *Server, g *segment) {
	w.bytes -= int64(len(g.data))
	s.count.stagingBytes.Add(-int64(len(g.data)))
	if err := unix.Munmap(g.data); err != nil {
		s.o.Logger.Error("a staging segment cannot be unmapped", "error", err)
	}
}

// close frees all segments.
func (w *writer) close(s *Server) {
	for i := range w.segments {
		w.unmap(s, &w.segments[i])
	}
	w.segments = nil
}

// use makes text the namespace of writes. It returns false unless text is the namespace of a model,
// because namespaces of keys belong to RESP and S3.
func (c *conn) use(text []byte) bool {
	w := &c.writer
	if w.namespace != "" && w.namespace == string(text) {
		c.known(w.namespace)
		return true
	}
	n, err := block.ParseNamespace(string(text))
	if err != nil || n.Space != "" {
		return false
	}
	w.namespace = string(bytes.Clone(text))
	w.model, w.names = block.IDOf(w.namespace), n.Blocks()-1
	c.known(w.namespace)
	return true
}

// attribute returns the attribute of names, which is valid until the next call. attribute returns
// false if objects of the namespace have another number of names. An object may have none.
func (w *writer) attribute(names []byte) ([]byte, bool) {
	if len(names) == 0 {
		return nil, true
	}
	if len(names) != w.names*block.NameBytes {
		return nil, false
	}
	w.attr = block.AppendNames(w.attr[:0], names)
	return w.attr, true
}

// chunk is the number of bytes that are copied before they are added to the checksum. A chunk fits
// the CPU's cache.
const chunk = 32 << 10

// commit answers Commit: it makes a block of staged bytes.
func (c *conn) commit(h frame.Header, body []byte) error {
	q, err := frame.ParseCommit(body)
	if err != nil {
		return err
	}
	g := c.writer.find(q.Segment)
	if g == nil || uint64(q.Offset)+uint64(q.Length) > uint64(len(g.data)) {
		return &frame.Error{Status: frame.StatusBadFrame, Text: fmt.Sprintf("no %d bytes at %d in segment %d", q.Length,
			q.Offset, q.Segment)}
	}
	if !c.use(q.Namespace) {
		return c.committed(h, &frame.Info{Status: frame.StatusNamespace})
	}
	attr, ok := c.writer.attribute(q.Names)
	if !ok {
		return c.committed(h, &frame.Info{Status: frame.StatusNames})
	}
	it := store.Item{
		Addr:      block.Addr{Digest: q.Digest, Model: c.writer.model, Layer: q.Layer},
		Namespace: c.writer.namespace, Parent: q.Parent, Expires: q.Expires, Attr: attr,
	}
	d, err := c.server.store.Create(c.server.ctx, it, int(q.Length))
	if err != nil {
		return c.committed(h, &frame.Info{Status: c.server.status(err)})
	}
	fill(d, g.data[q.Offset:][:q.Length])
	info, err := d.Commit(c.server.ctx, store.CommitOptions{
		Durable: q.Flags&frame.Durable != 0, CRC: q.CRC, CheckCRC: q.Flags&frame.CheckCRC != 0,
		IfAbsent: q.Flags&frame.IfAbsent != 0,
	})
	if err != nil {
		d.Abort()
		status := c.server.status(err)
		if status == frame.StatusInternal && q.Flags&frame.Durable != 0 {
			status = frame.StatusNotDurable // the disk failed
		}
		return c.committed(h, &frame.Info{Status: status})
	}
	return c.committed(h, infoOf(&info))
}

// fill copies the staged bytes into the draft. The checksum is of the copy, because the client may
// still be writing.
func fill(d *store.Draft, staged []byte) {
	to := d.Bytes()
	for at := 0; at < len(staged); {
		n := copy(to[at:], staged[at:min(at+chunk, len(staged))])
		d.Filled(n)
		at += n
	}
}

func (c *conn) committed(h frame.Header, i *frame.Info) error {
	if i.Status == frame.StatusOK {
		c.server.count.puts.Add(1)
		c.server.count.putBytes.Add(uint64(i.Length))
	} else {
		c.server.count.failedPuts.Add(1)
	}
	if err := c.reserve(frame.HeaderSize + frame.InfoSize); err != nil {
		return err
	}
	start := len(c.out)
	c.out = frame.Append(c.out, frame.Header{Op: h.Op, Status: i.Status, Seq: h.Seq})
	c.out = frame.End(frame.AppendInfo(c.out, i), start)
	return nil
}
