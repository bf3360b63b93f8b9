package ssd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// fileSystem is the file operations of segments. Tests have one that loses power.
type fileSystem interface {
	MkdirAll(dir string) error
	// Create makes a new file; Open opens an existing one for reading and writing. Both tell
	// whether reads and writes bypass the page cache.
	Create(name string) (f file, direct bool, err error)
	Open(name string) (f file, direct bool, err error)
	Remove(name string) error
	Rename(from, to string) error
	List(dir string) ([]string, error)
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
	// Free returns how many bytes dir's filesystem has free.
	Free(dir string) (int64, error)
	// Lock keeps other processes out of dir until the closer is closed.
	Lock(name string) (io.Closer, error)
}

// file is one segment. Buffers given to it begin and end at multiples of a page.
type file interface {
	ReadAt(bufs [][]byte, off int64) error // io.ErrUnexpectedEOF: the file is shorter
	WriteAt(bufs [][]byte, off int64) error
	Preallocate(size int64) error
	Truncate(size int64) error
	Datasync() error
	Size() (int64, error)
	Close() error
}

// osFS is the operating system's file system.
type osFS struct{}

func (osFS) MkdirAll(dir string) error              { return os.MkdirAll(dir, 0o700) }
func (osFS) Remove(name string) error               { return os.Remove(name) }
func (osFS) Rename(from, to string) error           { return os.Rename(from, to) }
func (osFS) Create(name string) (file, bool, error) { return openFile(name, os.O_CREATE|os.O_EXCL) }
func (osFS) Open(name string) (file, bool, error)   { return openFile(name, 0) }

func openFile(name string, flags int) (file, bool, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT|flags, 0o600)
	if err == nil {
		return osFile{f, int(f.Fd())}, true, nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return nil, false, err
	}
	if f, err = os.OpenFile(name, os.O_RDWR|flags&^os.O_EXCL, 0o600); err != nil {
		return nil, false, err
	}
	return osFile{f, int(f.Fd())}, false, nil
}

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// Lock takes a flock, which ends with the process however it ends.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 20))
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is held by process %s; stop it or use another directory",
				ErrLocked, filepath.Dir(name), strings.TrimSpace(string(holder)))
		}
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

type osFile struct {
	f  *os.File
	fd int
}

func (o osFile) Preallocate(size int64) error {
	err := unix.Fallocate(o.fd, 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return o.f.Truncate(size)
	}
	return err
}

func (o osFile) Truncate(size int64) error { return o.f.Truncate(size) }
func (o osFile) Close() error              { return o.f.Close() }

func (o osFile) Datasync() error {
	for {
		if err := unix.Fdatasync(o.fd); err != unix.EINTR {
			return err
		}
	}
}

func (o osFile) Size() (int64, error) {
	info, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (o osFile) ReadAt(bufs [][]byte, off int64) error {
	return transfer(bufs, off, func(bufs [][]byte, off int64) (int, error) { return unix.Preadv(o.fd, bufs, off) })
}

func (o osFile) WriteAt(bufs [][]byte, off int64) error {
	return transfer(bufs, off, func(bufs [][]byte, off int64) (int, error) { return unix.Pwritev(o.fd, bufs, off) })
}

// transfer repeats move until all of bufs is done. One system call is enough, unless the kernel
// stops early.
func transfer(bufs [][]byte, off int64, move func([][]byte, int64) (int, error)) error {
	for len(bufs) > 0 {
		n, err := move(bufs, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		off += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n > 0 {
			bufs = append([][]byte{bufs[0][n:]}, bufs[1:]...)
		}
	}
	return nil
}

// privateFS makes the files of the rows unreadable to others, which Pebble leaves to the umask.
type privateFS struct{ vfs.FS }

func (p privateFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	if err == nil {
		err = os.Chmod(name, 0o600)
	}
	return f, err
}

func (p privateFS) MkdirAll(dir string, _ fs.FileMode) error { return p.FS.MkdirAll(dir, 0o700) }
func (p privateFS) Unwrap() vfs.FS                           { return p.FS }

func (p privateFS) Lock(name string) (io.Closer, error) {
	c, err := p.FS.Lock(name)
	if err == nil {
		err = os.Chmod(name, 0o600)
	}
	return c, err
}
