package ssd

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
)

// spares are files of reclaimed segments, which are written again. A file system overwrites blocks
// in half the time that it takes to fill reserved space. Their bytes count in t.disk.
type spares struct {
	mu    sync.Mutex
	files []spare
	shut  bool
}

// spare is a file without a segment. Old bytes in it do no harm, because a segment knows its
// records by its salt.
type spare struct {
	name string
	f    file
	size int64
}

// sparesMax bounds the spare files. It is the number of segments for which reclaim keeps room.
const sparesMax = 2

const sparePrefix = "spare-"

// spareName is the name of a segment's file between reclaim and its next use.
func spareName(segment string) string {
	return filepath.Join(filepath.Dir(segment), sparePrefix+strings.TrimPrefix(filepath.Base(segment), segmentPrefix))
}

// take returns a file for a new segment.
func (p *spares) take() (s spare, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.files)
	if n == 0 {
		return s, false
	}
	s, p.files = p.files[n-1], p.files[:n-1]
	return s, true
}

// full tells whether no further file is kept.
func (p *spares) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shut || len(p.files) >= sparesMax
}

func (p *spares) put(s spare) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut || len(p.files) >= sparesMax {
		return false
	}
	p.files = append(p.files, s)
	return true
}

// held returns the bytes of the files.
func (p *spares) held() (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.files {
		bytes += p.files[i].size
	}
	return bytes
}

// keepSpare keeps the unused file of s, unless the rows need its room. At least one segment's worth
// of the disk stays free. The new name is durable before the file is written, so a segment that a
// crash brings back under its old name is unchanged.
func (t *Tier) keepSpare(s *segment) bool {
	if s.failed.Load() || t.spares.full() || t.room() < t.segmentSize() {
		return false
	}
	name := spareName(s.name)
	if t.o.fs.Rename(s.name, name) != nil {
		return false
	}
	s.name = name // for its removal, if that is needed
	return t.o.fs.SyncDir(t.o.Dir) == nil && t.spares.put(spare{name, s.f, s.size.Load()})
}

// dropSpares removes spare files until room bytes are free or none is left.
func (t *Tier) dropSpares(room int64) {
	for t.room() < room {
		s, ok := t.spares.take()
		if !ok {
			return
		}
		t.dropSpare(s)
	}
}

// closeSpares removes all spare files. No more are kept.
func (t *Tier) closeSpares() {
	t.spares.mu.Lock()
	t.spares.shut = true
	t.spares.mu.Unlock()
	for s, ok := t.spares.take(); ok; s, ok = t.spares.take() {
		t.dropSpare(s)
	}
}

// dropSpare removes a file that is not in spares. If that fails, the file counts in t.disk until
// the next start, which removes it.
func (t *Tier) dropSpare(s spare) {
	_ = s.f.Close()
	if err := t.o.fs.Remove(s.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.writeFailed("remove", err)
		return
	}
	t.disk.Add(-s.size)
}

// dropFailed removes the file of a segment that could not be made. t.disk no longer counts the
// file, even if it stays. So a failing disk does not make reclaim evict blocks for it.
func (t *Tier) dropFailed(s spare) {
	t.disk.Add(-s.size)
	s.size = 0
	t.dropSpare(s)
}

// newFile makes the file of a segment of the given size, from a spare one if possible, and counts
// its bytes in t.disk.
func (t *Tier) newFile(name string, size int64) (f file, err error) {
	s, spared := t.spares.take()
	// The bytes are counted before the file is made, so the files never exceed the cap.
	t.disk.Add(size - s.size)
	if spared {
		if err = t.o.fs.Rename(s.name, name); err != nil {
			name = s.name
		}
	} else {
		var direct bool
		if s.f, direct, err = t.o.fs.Create(name); err != nil {
			t.disk.Add(-size)
			return nil, err
		}
		t.noteDirect(direct)
	}
	if err == nil {
		err = s.f.Preallocate(size)
	}
	if err != nil {
		t.dropFailed(spare{name, s.f, size})
		return nil, err
	}
	if spared {
		t.stats.reused.Add(1)
	}
	return s.f, nil
}
