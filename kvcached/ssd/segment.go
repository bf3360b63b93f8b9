package ssd

import (
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// segment is one file of records. It is written once from front to end, sealed, and deleted as a
// whole. Its salt distinguishes it from all other segments with its number.
type segment struct {
	id   uint32
	salt [16]byte
	name string
	f    file
	seal cipher.AEAD // nil: payloads are not sealed

	size atomic.Int64 // bytes of the file
	live atomic.Int64 // bytes of the records that the index points to
	used atomic.Int64 // the part of live in records that were used since they were written or last spared
	rank uint64       // reclaim begins with the lowest rank; only reclaim uses it
	refs atomic.Int32 // users of f, with the tier itself; at 0 the file is deleted
	sync syncer

	// Guarded by log.mu until the segment is full and no record is being written.
	next   uint32 // first free page
	flying int    // records that are being written
	full   bool
	spare  bool // made of the last room, for reclaim's copies; writers wait for more room
	table  []tableEntry
	sealed atomic.Bool
	failed atomic.Bool // a sync failed, so nothing more is written to the segment
}

const segmentPrefix, segmentSuffix = "segment-", ".cgnkv"

func segmentName(dir string, id uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%s%08x%s", segmentPrefix, id, segmentSuffix))
}

// segmentID reads the name of a file in the directory.
func segmentID(name string) (uint32, bool) {
	hex, ok := strings.CutPrefix(name, segmentPrefix)
	if ok {
		hex, ok = strings.CutSuffix(hex, segmentSuffix)
	}
	id, err := strconv.ParseUint(hex, 16, 32)
	return uint32(id), ok && err == nil && len(hex) == 8
}

// createSegment makes an empty segment of size bytes, and makes its name and first page durable. It
// counts the bytes in t.disk.
func (t *Tier) createSegment(id uint32, size int64) (_ *segment, err error) {
	s := &segment{id: id, rank: uint64(id), name: segmentName(t.o.Dir, id), next: 1}
	_, _ = rand.Read(s.salt[:])
	if s.seal, err = sealer(t.o.Key, s.salt); err != nil {
		return nil, err
	}
	b := t.pages.Get().(*[page]byte)
	defer t.pages.Put(b)
	encodeFirst(b[:], id, s.salt)
	if s.f, err = t.newFile(s.name, size); err != nil {
		return nil, fmt.Errorf("ssd: making segment %s: %w", s.name, err)
	}
	err = s.f.WriteAt([][]byte{b[:]}, 0)
	if err == nil {
		err = s.f.Datasync()
	}
	if err == nil {
		err = t.o.fs.SyncDir(t.o.Dir)
	}
	if err != nil {
		t.dropFailed(spare{s.name, s.f, size})
		return nil, fmt.Errorf("ssd: making segment %s: %w", s.name, err)
	}
	t.stats.written.Add(page)
	s.size.Store(size)
	s.refs.Store(1)
	return s, nil
}

// openSegment opens an existing segment.
func (t *Tier) openSegment(name string, id uint32) (_ *segment, err error) {
	s := &segment{id: id, rank: uint64(id), name: name, full: true}
	var direct bool
	if s.f, direct, err = t.o.fs.Open(name); err != nil {
		return nil, err
	}
	t.noteDirect(direct)
	defer func() {
		if err != nil {
			_ = s.f.Close()
		}
	}()
	b := t.pages.Get().(*[page]byte)
	defer t.pages.Put(b)
	if err = s.f.ReadAt([][]byte{b[:]}, 0); err != nil {
		return nil, err
	}
	found, salt, err := decodeFirst(b[:])
	if err != nil {
		return nil, err
	}
	if found != id {
		return nil, fmt.Errorf("%w: it is number %d", errSegment, found)
	}
	s.salt = salt
	if s.seal, err = sealer(t.o.Key, salt); err != nil {
		return nil, err
	}
	size, err := s.f.Size()
	if err != nil {
		return nil, err
	}
	s.size.Store(size)
	s.next = uint32(min(size/page, 1<<32-1))
	s.refs.Store(1)
	return s, nil
}

// pageCount returns the number of whole pages of the file.
func (s *segment) pageCount() uint32 { return uint32(s.size.Load() / page) }

// syncer groups syncs. A caller needs no sync of its own if another one begins after its write and
// succeeds.
type syncer struct {
	arrived atomic.Uint64
	mu      sync.Mutex
	covered uint64
	err     error
}

// do returns nil when everything written before the call is durable. synced tells whether this call
// went to the disk.
func (s *syncer) do(datasync func() error) (synced bool, err error) {
	ticket := s.arrived.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.covered >= ticket || s.err != nil {
		return false, s.err
	}
	s.covered = s.arrived.Load()
	// The kernel drops pages that it could not write, and a later sync would succeed without them.
	// So the error stays.
	s.err = datasync()
	return true, s.err
}

// datasync makes the writes to s durable. A failure stays with the segment.
func (t *Tier) datasync(s *segment) error {
	synced, err := s.sync.do(s.f.Datasync)
	if synced {
		t.stats.syncs.Add(1)
	}
	if err != nil && !s.failed.Swap(true) {
		t.writeFailed("sync", err)
	}
	return err
}

// segments has the open segments by number.
type segments struct {
	mu   sync.RWMutex
	byID map[uint32]*segment
}

// acquire returns the segment with this number for use until release, or nil if there is none.
func (m *segments) acquire(id uint32) *segment {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.byID[id]
	if s != nil {
		s.refs.Add(1)
	}
	return s
}

func (m *segments) get(id uint32) *segment {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byID[id]
}

func (m *segments) add(s *segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byID[s.id] = s
}

// all returns the segments, oldest first.
func (m *segments) all() []*segment {
	m.mu.RLock()
	defer m.mu.RUnlock()
	list := make([]*segment, 0, len(m.byID))
	for _, s := range m.byID {
		list = append(list, s)
	}
	sortSegments(list)
	return list
}

// retire removes s from segments. Its file is deleted when the last reader has finished.
func (t *Tier) retire(s *segment) {
	t.segs.mu.Lock()
	delete(t.segs.byID, s.id)
	t.segs.mu.Unlock()
	t.release(s)
}

// release ends an acquire. After the last one the file is kept as a spare or removed.
func (t *Tier) release(s *segment) {
	if s.refs.Add(-1) > 0 {
		return
	}
	if !t.keepSpare(s) {
		t.dropSpare(spare{s.name, s.f, s.size.Load()})
	}
	t.announceSpace()
}
