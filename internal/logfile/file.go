package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

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
	torn bool // the last write ended within a line
}

// writeWait bounds the wait for the reader of a pipe that is full.
const writeWait = 500 * time.Millisecond

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
	if f.File, f.torn = next, false; old == nil {
		return nil
	}
	return old.Close()
}

// Write writes whole lines. A named pipe that stays full is an error after 0.5 s; its part of a
// line then ends with the next write. Standard output may hang for as long as nobody reads it.
func (f *File) Write(lines []byte) (n int, err error) {
	_ = f.SetWriteDeadline(time.Now().Add(writeWait)) // fails for what is no pipe
	if f.torn {
		if _, err := f.File.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
	}
	n, err = f.File.Write(lines)
	f.torn = n > 0 && n < len(lines)
	return n, err
}

// Close closes the file.
func (f *File) Close() error {
	if f.name == "-" {
		return nil
	}
	return f.File.Close()
}

// Place is the log file or pipe of a setting.
type Place struct {
	Setting string
	File    string      // may be no file: empty, "-" or "syslog"
	Mode    fs.FileMode // with which the daemon makes it
}

// Named says whether the place is a file: not standard output, the syslog or nothing.
func (p Place) Named() bool { return p.File != "" && p.File != "-" && p.File != "syslog" }

// Wide returns the mode of an existing file that more users can read or change than the daemon
// would let.
func (p Place) Wide() (mode fs.FileMode, wide bool) {
	if !p.Named() {
		return 0, false
	}
	info, err := os.Stat(p.File)
	if err != nil || info.Mode().Type()&^fs.ModeNamedPipe != 0 {
		return 0, false // missing, or a device
	}
	mode = info.Mode().Perm()
	return mode, mode&^p.Mode != 0
}

// Advise warns of logs that other users can read or change.
func Advise(log *slog.Logger, all ...Place) {
	for _, p := range all {
		if mode, ok := p.Wide(); ok {
			log.Warn("other users can read or change a log", "setting", p.Setting, "file", p.File,
				"mode", fmt.Sprintf("%#o", mode), "fix", fmt.Sprintf("chmod %#o %s", mode&p.Mode, p.File))
		}
	}
}
