package ssd

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

const sector = 512

// simFS is a file system in memory that can lose power. After a loss of power each sector that was
// written and not synced may exist or not, in any combination. The same holds for files that were
// created or renamed if their directory was not synced.
type simFS struct {
	mu     sync.RWMutex
	files  map[string]*simFile
	stable map[string]*simFile // files that survive a crash
	locked map[string]bool
	fault  func(op string) error // nil: no faults
}

func newSimFS() *simFS {
	return &simFS{files: map[string]*simFile{}, stable: map[string]*simFile{}, locked: map[string]bool{}}
}

type simFile struct {
	fs     *simFS
	mu     sync.Mutex
	data   []byte
	synced []byte         // as of the last sync
	dirty  map[int64]bool // sectors written since
}

func (s *simFS) trip(op string) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(op)
}

func (s *simFS) MkdirAll(string) error { return nil }

func (s *simFS) Create(name string) (file, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trip("create"); err != nil {
		return nil, false, err
	}
	if s.files[name] != nil {
		return nil, false, fs.ErrExist
	}
	f := &simFile{fs: s, dirty: map[int64]bool{}}
	s.files[name] = f
	return f, true, nil
}

func (s *simFS) Open(name string) (file, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files[name] == nil {
		return nil, false, fs.ErrNotExist
	}
	return s.files[name], true, nil
}

func (s *simFS) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trip("remove"); err != nil {
		return err
	}
	if s.files[name] == nil {
		return fs.ErrNotExist
	}
	delete(s.files, name)
	return nil
}

func (s *simFS) Rename(from, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[to] = s.files[from]
	delete(s.files, from)
	return nil
}

func (s *simFS) List(dir string) (names []string, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for name := range s.files {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	return names, nil
}

func (s *simFS) SyncDir(string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trip("sync"); err != nil {
		return err
	}
	s.stable = maps.Clone(s.files)
	return nil
}

func (s *simFS) Free(string) (int64, error) { return 1 << 40, nil }

type simLock struct {
	s    *simFS
	name string
}

func (l simLock) Close() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	delete(l.s.locked, l.name)
	return nil
}

func (s *simFS) Lock(name string) (io.Closer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked[name] {
		return nil, ErrLocked
	}
	s.locked[name] = true
	return simLock{s, name}, nil
}

func (f *simFile) ReadAt(bufs [][]byte, off int64) error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fs.trip("read"); err != nil {
		return err
	}
	for _, b := range bufs {
		if !aligned(b, len(b)) || len(b)%page != 0 || off%page != 0 {
			return syscall.EINVAL
		}
		if off+int64(len(b)) > int64(len(f.data)) {
			return io.ErrUnexpectedEOF
		}
		off += int64(copy(b, f.data[off:]))
	}
	return nil
}

func (f *simFile) WriteAt(bufs [][]byte, off int64) error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fs.trip("write"); err != nil {
		return err
	}
	for _, b := range bufs {
		if !aligned(b, len(b)) || len(b)%page != 0 || off%page != 0 {
			return syscall.EINVAL
		}
		if end := off + int64(len(b)); end > int64(len(f.data)) {
			f.data = append(f.data, make([]byte, end-int64(len(f.data)))...)
		}
		for at := int64(0); at < int64(len(b)); at += sector {
			f.dirty[off+at] = true
		}
		off += int64(copy(f.data[off:], b))
	}
	return nil
}

func (f *simFile) resize(op string, size int64, shrink bool) error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fs.trip(op); err != nil {
		return err
	}
	if n := int64(len(f.data)); size > n {
		f.data = append(f.data, make([]byte, size-n)...)
	} else if shrink {
		f.data = f.data[:size:size]
	}
	return nil
}

func (f *simFile) Preallocate(size int64) error { return f.resize("allocate", size, false) }
func (f *simFile) Truncate(size int64) error    { return f.resize("truncate", size, true) }

func (f *simFile) Datasync() error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fs.trip("sync"); err != nil {
		f.dirty = map[int64]bool{} // as on Linux, the next sync succeeds without these writes
		return err
	}
	if len(f.synced) > len(f.data) {
		f.synced = f.synced[:len(f.data)]
	}
	f.synced = append(f.synced, make([]byte, len(f.data)-len(f.synced))...)
	for at := range f.dirty {
		if at < int64(len(f.data)) {
			copy(f.synced[at:at+sector], f.data[at:])
		}
	}
	f.dirty = map[int64]bool{}
	return nil
}

func (f *simFile) Size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *simFile) Close() error { return nil }

// crash returns the files that are left if the power fails now. also is called while nothing is
// being written.
func (s *simFS) crash(rng *rand.Rand, also func()) *simFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := newSimFS()
	names := slices.Sorted(maps.Keys(s.stable))
	for name := range s.files {
		if s.stable[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	keep := rng.IntN(101) // percent of the unsynced sectors
	for _, name := range names {
		was, is := s.stable[name], s.files[name]
		f := is
		if was != is && rng.IntN(2) == 0 {
			f = was
		}
		if f != nil {
			c := f.crash(rng, keep)
			c.fs = after
			after.files[name], after.stable[name] = c, c
		}
	}
	also()
	return after
}

func (f *simFile) crash(rng *rand.Rand, keep int) *simFile {
	data := slices.Clone(f.synced)
	if len(f.data) != len(data) && rng.IntN(100) < keep {
		if len(f.data) < len(data) {
			data = data[:len(f.data)]
		} else {
			data = append(data, make([]byte, len(f.data)-len(data))...)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(f.dirty)) {
		if rng.IntN(100) < keep && at+sector <= int64(len(f.data)) {
			if need := at + sector; need > int64(len(data)) {
				data = append(data, make([]byte, need-int64(len(data)))...)
			}
			copy(data[at:at+sector], f.data[at:])
		}
	}
	return &simFile{data: data, synced: slices.Clone(data), dirty: map[int64]bool{}}
}

// flip changes one bit of a random segment file, and returns its place. false: there is no file.
func (s *simFS) flip(rng *rand.Rand) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.files)), func(n string) bool {
		_, ok := segmentID(filepath.Base(n))
		return !ok
	})
	if len(names) == 0 {
		return false
	}
	f := s.files[names[rng.IntN(len(names))]]
	if len(f.data) == 0 {
		return false
	}
	f.data[rng.IntN(len(f.data))] ^= 1 << rng.IntN(8)
	return true
}
