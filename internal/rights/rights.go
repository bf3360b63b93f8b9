// Package rights says whether this process may read, write or make a file that
// a configuration names, without opening, making or changing anything.
package rights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Readable says why path cannot be read as a file; nil if it can.
func Readable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return missing(path, err)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, not a file", path)
	}
	return may(path, unix.R_OK, "read")
}

// Listable says why path cannot be read as a directory; nil if it can.
func Listable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return missing(path, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	return may(path, unix.R_OK|unix.X_OK, "read")
}

// Appendable says why path cannot be opened for writing, or made where it is not
// there; nil if it can.
func Appendable(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Writable(filepath.Dir(path))
	}
	if err != nil {
		return missing(path, err)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, not a file", path)
	}
	return may(path, unix.W_OK, "written")
}

// Writable says why no file can be made in the directory dir; nil if one can.
func Writable(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return missing(dir, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := may(dir, unix.W_OK|unix.X_OK, "written to"); err != nil {
		return err
	}
	if ofKernel(dir) {
		return fmt.Errorf("%s is of a file system in which the kernel alone makes files", dir)
	}
	return nil
}

// Makeable is Writable for a directory that is made, with those above it, where
// it is not there.
func Makeable(dir string) error {
	dir = filepath.Clean(dir)
	for {
		_, err := os.Stat(dir)
		above := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || above == dir {
			return Writable(dir)
		}
		dir = above
	}
}

// missing words the error of os.Stat.
func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist", path)
	}
	return err
}

// may asks the kernel for the rights that this process has now.
func may(path string, mode uint32, verb string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s cannot be %s by this user: %w", path, verb, err)
	}
	return nil
}
