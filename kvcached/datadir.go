package kvcached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process uses the data directory.
var ErrLocked = errors.New("kvcached: the data directory is in use")

// lockFile is locked while a daemon or an offline verify uses the directory.
const lockFile = "LOCK"

// Lock is a locked data directory. Other processes cannot use it before Unlock.
type Lock struct{ file *os.File }

// LockDir locks dir and makes it (0700) if it does not exist. An ErrLocked names the process that
// holds the lock. The kernel releases the lock when the process ends.
func LockDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("kvcached.data: %w; name a directory that can be made with --data DIR", err)
	}
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kvcached.data: %w; name a directory that can be written to with --data DIR", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("kvcached.data: lock of %s: %w", name, err)
		}
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		return nil, fmt.Errorf("%w: %s by process %s; stop that one, or name another directory with --data DIR",
			ErrLocked, dir, holder[:n])
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprint(os.Getpid())), 0) // people can read the holder's process id
		_ = err
	}
	return &Lock{f}, nil
}

// Unlock lets other processes use the directory.
func (l *Lock) Unlock() { _ = l.file.Close() }
