package up

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/rights"
)

const (
	temporary = "cgn-up-" // prefix of temporary directories for state
	lockFile  = "lock"    // in a directory for state; locked while its owner lives
)

// directory makes the directory for state, and returns a function that gives the directory up.
// Before that, directory removes temporary directories of killed owners.
func (f *flags) directory() (dir string, leave func() error, err error) {
	removeAbandoned(os.TempDir())
	if f.data == "" {
		return temporaryDirectory()
	}
	dir, err = filepath.Abs(f.data)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = rights.Writable(dir)
	}
	if err != nil {
		return "", nil, cli.WithHint(fmt.Errorf("--data %s: %w", f.data, err),
			"give a directory that you can make or write to")
	}
	lock, err := lockData(dir)
	if err != nil {
		return "", nil, err
	}
	return dir, lock.Close, nil
}

// lockData locks a directory that is kept, so that no other process uses it. The lock file contains
// the process id, for people.
func lockData(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, cli.WithHint(fmt.Errorf("--data %s: %w", dir, err),
			"give a directory that you can make or write to")
	}
	if err = flock(lock); err == nil {
		_, err = lock.WriteAt(fmt.Appendf(nil, "%-20d", os.Getpid()), 0)
	}
	if err == nil {
		return lock, nil
	}
	defer lock.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("--data %s: its lock: %w", dir, err)
	}
	holder := make([]byte, 20) // enough digits for a process id
	n, _ := lock.ReadAt(holder, 0)
	return nil, cli.WithHint(fmt.Errorf("--data %s: the data directory is in use by process %s", dir,
		strings.TrimSpace(string(holder[:n]))),
		"stop that one, or give another directory with --data")
}

func temporaryDirectory() (dir string, leave func() error, err error) {
	if dir, err = os.MkdirTemp("", temporary); err != nil {
		return "", nil, cli.WithHint(err, "give a directory for state with --data")
	}
	lock, err := holdLock(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// holdLock locks a new file and then gives it its name, so that nobody sees it unlocked while this
// process lives. Child processes do not inherit the lock.
func holdLock(dir string) (*os.File, error) {
	lock, err := os.CreateTemp(dir, "new-"+lockFile)
	if err != nil {
		return nil, err
	}
	if err = flock(lock); err == nil {
		err = os.Rename(lock.Name(), filepath.Join(dir, lockFile))
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return lock, nil
}

// removeAbandoned removes this user's temporary directories below parent whose lock nobody holds.
// removeAbandoned leaves directories without a lock, and those that cannot be removed.
func removeAbandoned(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, temporary+"*", lockFile))
	for _, name := range locks {
		if info, err := os.Lstat(filepath.Dir(name)); err != nil || !info.IsDir() ||
			info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		lock, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if flock(lock) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}

// flock locks a file until it is closed, or fails at once.
func flock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
