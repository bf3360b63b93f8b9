// Package replace gives a file a new content in one step. A reader finds the whole content of
// before or of after, also after a crash. Errors are those of the system, and name the path. After
// an error the file is as it was, unless only the sync of its directory failed.
package replace

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	partPrefix = "."
	partSuffix = ".part"
)

// Part returns the base name of the file that File writes beside a file before it renames it. A
// crash leaves this file, and the next File of the same name removes it.
func Part(base string) string { return partPrefix + base + partSuffix }

// Whole is the inverse of Part. ok is false if base is not the name of a part.
func Whole(base string) (whole string, ok bool) {
	base, begins := strings.CutPrefix(base, partPrefix)
	whole, ends := strings.CutSuffix(base, partSuffix)
	return whole, begins && ends
}

// Bytes is File with a content that is in memory.
func Bytes(name string, mode fs.FileMode, content []byte) error {
	return replace(name, mode, false, all(content))
}

// OwnedBytes is Bytes for a file that its owner must be able to read. It is an error if the owner
// or the group cannot be kept.
func OwnedBytes(name string, mode fs.FileMode, content []byte) error {
	return replace(name, mode, true, all(content))
}

func all(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// File gives a file the content that write writes. A new file gets the mode, less the umask of the
// process. A file that exists keeps its mode, and its owner and group if the process may give them
// to a file. A link to it stays. Callers with the same name take turns.
func File(name string, mode fs.FileMode, write func(io.Writer) error) error {
	return replace(name, mode, false, write)
}

// replace is File. If owned is set, it is an error if the owner or the group cannot be kept.
func replace(name string, mode fs.FileMode, owned bool, write func(io.Writer) error) error {
	if at, err := filepath.EvalSymlinks(name); err == nil {
		name = at
	}
	was, missing := os.Stat(name)
	if missing == nil {
		mode = 0o600 // until it has its owner
	}
	dir := filepath.Dir(name)
	part := filepath.Join(dir, Part(filepath.Base(name)))
	_ = os.Remove(part) // if it stays, OpenFile has the error
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if missing == nil {
		if err = SameOwner(f, was); !owned && errors.Is(err, fs.ErrPermission) {
			err = nil
		}
		err = cmp.Or(err, f.Chmod(was.Mode().Perm()))
	}
	if err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		os.Remove(part)
		return err
	}
	return syncDir(dir)
}

// SameOwner gives a file the owner and group of another one.
func SameOwner(f *os.File, other fs.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	is, ok1 := info.Sys().(*syscall.Stat_t)
	want, ok2 := other.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 || is.Uid == want.Uid && is.Gid == want.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}

// syncDir makes a rename in a directory last.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return cmp.Or(d.Sync(), d.Close())
}
