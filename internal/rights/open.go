package rights

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens a file to read it, and never waits for a program that writes it. Open refuses pipes
// that have a name. A pipe of this process, as in <(command) of a shell, counts as a file.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = noPipe(path, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// maxFile bounds what ReadFile reads, in bytes.
const maxFile = 64 << 20

// ReadFile is os.ReadFile for the files that Open opens. ReadFile refuses devices, and files of
// more than 64 MiB. A descriptor of this process may be anything, within that bound.
func ReadFile(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = noDevice(path, info)
	}
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		return nil, fmt.Errorf("%s has more than %d MiB", path, maxFile>>20)
	}
	return text, err
}

// noPipe returns an error for a pipe, unless it is a descriptor of this process.
func noPipe(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeNamedPipe == 0 || isOwn(path) {
		return nil
	}
	return fmt.Errorf("%s is a pipe, not a file", path)
}

// noDevice returns an error for a device, unless it is a descriptor of this process.
func noDevice(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeDevice == 0 || isOwn(path) {
		return nil
	}
	return fmt.Errorf("%s is a device, not a file", path)
}

// isOwn says whether path is a descriptor of this process.
func isOwn(path string) bool {
	for _, own := range []string{"/dev/fd/", "/dev/stdin", "/proc/self/fd/"} {
		if strings.HasPrefix(path, own) {
			return true
		}
	}
	return false
}
