package kvcached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another daemon has the data directory.
var ErrLocked = errors.New("kvcached: the data directory is in use")

// lockFile is held as long as a daemon, or an offline verify, has the directory.
const lockFile = "LOCK"

// Lock is a data directory that nobody else may use until Unlock.
type Lock struct{ file *os.File }

// LockDir makes dir (0700) if it is not there and locks it. An error that is
// ErrLocked says who has it. The kernel lets go of it when the process ends.
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
		_, err = f.WriteAt([]byte(fmt.Sprint(os.Getpid())), 0) // for people
		_ = err
	}
	return &Lock{f}, nil
}

// Unlock lets others have the directory.
func (l *Lock) Unlock() { _ = l.file.Close() }
