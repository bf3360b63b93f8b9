package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Sink is where lines go. One goroutine uses it.
type Sink interface {
	io.WriteCloser
	Reopen() error // on an error the old file stays in use
}

// File is a Sink: a file to append to, or standard output, which it does not close.
type File struct {
	*os.File
	name string
	mode fs.FileMode
}

// Open opens a file, and makes it with the mode if it is missing. The name - is standard output.
func Open(name string, mode fs.FileMode) (*File, error) {
	if name == "" {
		return nil, errors.New("no file for the log; name one, or - for standard output")
	}
	f := &File{name: name, mode: mode}
	return f, f.Reopen()
}

// Reopen opens the file anew and closes the old one. A pipe that no program reads is an error.
func (f *File) Reopen() error {
	if f.name == "-" {
		f.File = os.Stdout
		return nil
	}
	next, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, f.mode)
	if errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%s is a pipe that no program reads", f.name)
	}
	if err != nil {
		return err
	}
	old := f.File
	if f.File = next; old == nil {
		return nil
	}
	return old.Close()
}

// Close closes the file.
func (f *File) Close() error {
	if f.name == "-" {
		return nil
	}
	return f.File.Close()
}
