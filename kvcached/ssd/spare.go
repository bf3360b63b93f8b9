package ssd

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
)

// spares are files of reclaimed segments that are written again. A file system overwrites blocks in
// half the time that it takes to fill reserved space. Their bytes count as the disk's.
type spares struct {
	mu    sync.Mutex
	files []spare
	shut  bool
}

// spare is a file without a segment. Its bytes are not believed: a segment knows its records by its
// salt.
type spare struct {
	name string
	f    file
	size int64
}

// sparesMax is how many files are kept: as many segments as reclaim keeps room for.
const sparesMax = 2

const sparePrefix = "spare-"

// spareName is the name of a segment's file from when it is reclaimed until it is used again.
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

// full tells whether no more are kept.
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

// held is how many bytes the files have.
func (p *spares) held() (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.files {
		bytes += p.files[i].size
	}
	return bytes
}

// keepSpare keeps the file of s, which nobody uses any more, unless less than a segment's worth of
// the disk is left for rows to grow. The new name is durable before the file is written to: a
// segment that a crash brings back under its old name is unchanged.
func (t *Tier) keepSpare(s *segment) bool {
	if s.failed.Load() || t.spares.full() || t.room() < t.segmentSize() {
		return false
	}
	name := spareName(s.name)
	if t.o.fs.Rename(s.name, name) != nil {
		return false
	}
	s.name = name // should it have to be removed
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

// closeSpares removes all spare files and keeps no more.
func (t *Tier) closeSpares() {
	t.spares.mu.Lock()
	t.spares.shut = true
	t.spares.mu.Unlock()
	for s, ok := t.spares.take(); ok; s, ok = t.spares.take() {
		t.dropSpare(s)
	}
}

// dropSpare removes a file that is not among the spare ones. A file that cannot be removed counts
// as the disk's until the next start, which removes it.
func (t *Tier) dropSpare(s spare) {
	_ = s.f.Close()
	if err := t.o.fs.Remove(s.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.writeFailed("remove", err)
		return
	}
	t.disk.Add(-s.size)
}

// dropFailed removes the file of a segment that could not be made. The disk does not count the file
// any more, even if it stays: a failing disk must not have blocks evicted for a segment that it
// does not hold.
func (t *Tier) dropFailed(s spare) {
	t.disk.Add(-s.size)
	s.size = 0
	t.dropSpare(s)
}

// newFile makes the file of a segment, of the given size, from a spare one if there is one. It adds
// the bytes to the disk's.
func (t *Tier) newFile(name string, size int64) (f file, err error) {
	s, spared := t.spares.take()
	// The bytes are taken before the file is made, so that no moment sees more than the cap.
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
