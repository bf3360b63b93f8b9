package ssd

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// spares are files of segments that were reclaimed, kept to be written anew: a file system writes
// over what it has already in half the time that it takes to fill space which it has only set
// aside. Their bytes count as the disk's.
type spares struct {
	mu    sync.Mutex
	files []spare
	bytes int64
	stuck []spare // could not be removed: tried again, and counted as the disk's until then
	shut  bool
}

// spare is a file that no segment has. Nothing in it is believed: what a segment holds is told by
// its salt.
type spare struct {
	name string
	f    file
	size int64
}

// sparesMax is how many files are kept: as many segments as reclaim keeps room for.
const sparesMax = 2

const sparePrefix = "spare-"

// spareName is what the file of a segment is called from when it is reclaimed until it is used
// again.
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
	p.bytes -= s.size
	return s, true
}

// wants tells whether one more of the given size may be kept.
func (p *spares) wants(size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.shut && len(p.files) < sparesMax && size > 0
}

func (p *spares) put(s spare) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut || len(p.files) >= sparesMax {
		return false
	}
	p.files = append(p.files, s)
	p.bytes += s.size
	return true
}

func (p *spares) held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// keeps tells whether the file with the name is one that could not be removed.
func (p *spares) keeps(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.stuck, func(s spare) bool { return s.name == name })
}

// close keeps files from being kept.
func (p *spares) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
}

// keepSpare keeps the file of s, which nobody uses any more, if a segment's worth of the disk is
// free besides, so that rows have room to grow. The new name is durable before the file is written
// to: a segment that a crash brings back under its old name is as it was.
func (t *Tier) keepSpare(s *segment) bool {
	size := s.size.Load()
	if s.failed.Load() || !t.spares.wants(size) || t.room() < t.segmentSize() || t.squeeze.limit.Load() > 0 {
		return false
	}
	name := spareName(s.name)
	if t.o.fs.Rename(s.name, name) != nil {
		return false
	}
	s.name = name // should it have to be removed
	return t.o.fs.SyncDir(t.o.Dir) == nil && t.spares.put(spare{name, s.f, size})
}

// dropSpares removes spare files while the segments and they leave less than room bytes, and tries
// again to remove what could not be.
func (t *Tier) dropSpares(room int64) {
	t.spares.mu.Lock()
	stuck := t.spares.stuck
	t.spares.stuck = nil
	t.spares.mu.Unlock()
	for _, s := range stuck {
		t.removeFile(s)
	}
	for t.room() < room {
		s, ok := t.spares.take()
		if !ok {
			return
		}
		t.dropSpare(s)
	}
}

// dropSpare removes a file that is not, or is no longer, among the spare ones.
func (t *Tier) dropSpare(s spare) {
	_ = s.f.Close()
	t.removeFile(s)
}

func (t *Tier) removeFile(s spare) {
	if err := t.o.fs.Remove(s.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.writeFailed("remove", err)
		t.spares.mu.Lock()
		t.spares.stuck = append(t.spares.stuck, s)
		t.spares.mu.Unlock()
		return
	}
	t.disk.Add(-s.size)
}

// dropFailed removes the file of a segment that could not be made. The disk does not count it any
// more, even if it cannot be removed yet: a disk that fails must not have blocks evicted for what
// it does not hold.
func (t *Tier) dropFailed(s spare) {
	t.disk.Add(-s.size)
	s.size = 0
	t.dropSpare(s)
}

// newFile makes the file of a segment, of the given size: a spare one, or else a new one. The
// disk's bytes are taken.
func (t *Tier) newFile(name string, size int64) (f file, err error) {
	s, ok := t.spares.take()
	if !ok {
		if !t.fits(size) {
			return nil, syscall.ENOSPC
		}
		// The bytes are taken before the file is made, so that no moment sees more than the cap.
		t.disk.Add(size)
		var direct bool
		if f, direct, err = t.o.fs.Create(name); err != nil {
			t.disk.Add(-size)
			return nil, err
		}
		t.noteDirect(direct)
		if err = f.Preallocate(size); err == nil {
			return f, nil
		}
		t.dropFailed(spare{name, f, size})
		return nil, err
	}
	t.disk.Add(size - s.size)
	if err = t.o.fs.Rename(s.name, name); err == nil {
		s.name = name
		err = s.f.Preallocate(size)
	}
	if err != nil {
		s.size = size
		t.dropFailed(s)
		return nil, err
	}
	t.stats.reused.Add(1)
	return s.f, nil
}
