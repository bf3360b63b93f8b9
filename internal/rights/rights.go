// Package rights checks whether this process may read, write or make a file that a configuration
// names, and opens it. The checks do not open, make or change anything.
package rights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Readable returns an error if path cannot be read as a file.
func Readable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return missing(path, err)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, not a file", path)
	}
	if err := noPipe(path, info); err != nil {
		return err
	}
	return may(path, unix.R_OK, "read")
}

// Listable returns an error if path cannot be read as a directory.
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

// Appendable returns an error if path cannot be opened for writing, or made if it is missing.
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

// Writable returns an error if no file can be made in the directory dir.
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

// Makeable is Writable for a directory that will be made, with its parents, if it is missing.
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

// missing words an error of os.Stat.
func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist", path)
	}
	return err
}

// may asks the kernel for the present rights of this process.
func may(path string, mode uint32, verb string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s cannot be %s by this user: %w", path, verb, err)
	}
	return nil
}
