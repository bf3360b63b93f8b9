package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultRoot is the root of the pins if Options.Root is empty.
const DefaultRoot = "/sys/fs/bpf/cognitora"

// Folders below the root.
const (
	mapsDir  = "maps"
	progsDir = "progs"
	linksDir = "links"
)

// hinted is an error with a hint for the operator.
type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

// WithHint returns err with its hint, if it has one, in the text. WithHint is for callers that do
// not ask an error for its Hint.
func WithHint(err error) error {
	if h, ok := errors.AsType[*hinted](err); ok {
		return fmt.Errorf("%w; %s", err, h.hint)
	}
	return err
}

// opening returns an error that names path. If rights are missing, the error's hint says how to get
// them.
func opening(path string, err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		err = named.Err
	}
	err = fmt.Errorf("bpf: open %s: %w", path, err)
	if errors.Is(err, fs.ErrPermission) {
		return &hinted{err, "run it as root, or as the user whose agent has loaded the programs, with CAP_BPF, " +
			"CAP_PERFMON and CAP_NET_ADMIN"}
	}
	return err
}

// pins is a folder of a BPF file system.
type pins string

func (p pins) path(dir, name string) string { return filepath.Join(string(p), dir, short(name)) }

// Examine returns an error if root (empty: DefaultRoot) cannot be made. Examine does not make root.
func Examine(root string) error { return pins(rootOf(root)).inBPF() }

// inBPF returns an error if the folder, or its lowest existing parent, is not in a BPF file system.
func (p pins) inBPF() error {
	var fsys unix.Statfs_t
	for at := string(p); ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &fsys)
		if errors.Is(err, unix.ENOENT) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "statfs", Path: at, Err: err}
		}
		if fsys.Type != unix.BPF_FS_MAGIC {
			return &hinted{fmt.Errorf("bpf: %s is not in a BPF file system", p),
				"mount one: mount -t bpf bpf /sys/fs/bpf"}
		}
		return nil
	}
}

// make makes the folders, and locks the root.
func (p pins) make() (lock *os.File, err error) {
	if err := p.inBPF(); err != nil {
		return nil, err
	}
	for errors.Is(err, fs.ErrNotExist) || lock == nil { // Clean may remove the folder in between, but only once
		if err = p.makeFolder(""); err != nil {
			return nil, err
		}
		if lock, err = p.lock(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, p.others(err)
		}
	}
	for _, dir := range []string{mapsDir, progsDir, linksDir} {
		if err := p.makeFolder(dir); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return lock, nil
}

func (p pins) makeFolder(dir string) error {
	path := filepath.Join(string(p), dir)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return p.others(fmt.Errorf("bpf: make the folder of pins: %w", err))
	}
	return nil
}

// others adds a hint if the folder belongs to another user.
func (p pins) others(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &hinted{err, fmt.Sprintf("have root make %s and give it to this user, as deploy/systemd/cgn-agent.service "+
		"does, or name another folder (telemetry.bpf_root of the agent, --root of cgn-ctl bpf)", p)}
}

// lockWait is how long a loader waits for other loaders, which take less than a second each.
const lockWait = 30 * time.Second

// lock keeps other loaders and Clean away from the folder until the file is closed or the process
// ends. lock returns fs.ErrNotExist if the folder does not exist, or was removed before it was
// locked.
func (p pins) lock() (*os.File, error) {
	dir, err := os.Open(string(p))
	if err != nil {
		return nil, opening(string(p), err)
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && p.is(dir) {
			return dir, nil
		}
		if err == nil {
			_ = dir.Close()
			return nil, fmt.Errorf("bpf: lock %s: %w", p, fs.ErrNotExist)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			_ = dir.Close()
			return nil, fmt.Errorf("bpf: lock %s, which another loader may have: %w", p, err)
		}
	}
}

// is tells whether dir is still the folder at this path.
func (p pins) is(dir *os.File) bool {
	open, err := dir.Stat()
	there, err2 := os.Stat(string(p))
	return err == nil && err2 == nil && os.SameFile(open, there)
}

// place pins an object first under another name and renames the pin, so that path never holds an
// unfinished object.
func (p pins) place(dir, name string, pin func(path string) error) error {
	path := p.path(dir, name)
	next := filepath.Join(filepath.Dir(path), "new-"+filepath.Base(path))
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := pin(next); err != nil {
		return fmt.Errorf("bpf: pin %s: %w", next, err)
	}
	if err := os.Rename(next, path); err != nil {
		_ = os.Remove(next)
		return fmt.Errorf("bpf: %w", err)
	}
	return nil
}

// Clean removes all programs and maps under root (empty: DefaultRoot), and returns how many pins it
// removed. Programs are detached when the last reader of their links has closed. Clean also removes
// root itself, unless root belongs to another user, because that user could not make root again.
// Clean does nothing if root does not exist. Running agents notice (Set.Removed) and load the
// programs anew.
func Clean(root string) (removed int, err error) {
	p := pins(rootOf(root))
	lock, err := p.lock()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if removed, err = p.empty(); err != nil {
		return removed, err
	}
	for _, dir := range []string{linksDir, progsDir, mapsDir} {
		if err := os.Remove(filepath.Join(string(p), dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
	}
	if owner, err := lock.Stat(); err == nil && owner.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return removed, nil
	}
	return removed, os.Remove(string(p))
}

// empty removes all pins, and returns their number. The caller holds the lock.
func (p pins) empty() (removed int, err error) {
	// Links first, so that counting ends before programs and maps go.
	for _, dir := range []string{linksDir, progsDir, mapsDir} {
		dir = filepath.Join(string(p), dir)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		for _, e := range entries {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return removed, err
			}
			removed++
		}
	}
	return removed, nil
}

func rootOf(root string) string { return cmp.Or(root, DefaultRoot) }
