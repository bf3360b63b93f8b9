// Package accesslog writes one JSON line per request without ever making a request wait.
//
// Log copies an entry into a preallocated record and hands it to one writer goroutine. When
// every record is waiting to be written, the newest entry is dropped and counted. Lines reach
// the file at most a second after they were logged.
package accesslog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	queueDefault  = 8192
	bufferBytes   = 64 << 10
	flushInterval = time.Second
)

// ErrClosed is returned by Reopen after Close.
var ErrClosed = errors.New("accesslog: closed")

// Options say where lines go and how many may wait.
type Options struct {
	Path  string // file to append to; "-" for standard output
	Queue int    // entries waiting to be written; 0 = 8192. Each takes about 0.6 KiB
	// Dropped, when set, is called for every entry that Log drops. It must not block.
	Dropped func()
	// Failed, when set, is called by the writer with each error of the file, and the number of
	// lines that were lost by it (an upper bound: some may have been written in part).
	Failed func(err error, lines int)

	writer io.Writer // instead of Path, for tests
}

// Logger is an open access log. Its methods are safe for concurrent use.
type Logger struct {
	dropped func()
	failed  func(error, int)

	free  chan *record // records that nobody uses
	queue chan *record // as large as free, so that sending never blocks

	reopen    chan chan error
	closing   chan struct{}
	closeOnce sync.Once
	done      chan struct{}
	closeErr  error

	sink    sink
	buf     *bufio.Writer
	pending int // lines in buf
	line    []byte
}

// New opens the log and starts its writer, which Close stops.
func New(o Options) (*Logger, error) {
	s := sink{path: o.Path, w: o.writer}
	if err := s.open(); err != nil {
		return nil, err
	}
	if o.Queue <= 0 {
		o.Queue = queueDefault
	}
	l := &Logger{
		dropped: o.Dropped, failed: o.Failed,
		free: make(chan *record, o.Queue), queue: make(chan *record, o.Queue),
		reopen: make(chan chan error), closing: make(chan struct{}), done: make(chan struct{}),
		sink: s, buf: bufio.NewWriterSize(s.w, bufferBytes), line: make([]byte, 0, 2048),
	}
	records := make([]record, o.Queue)
	for i := range records {
		l.free <- &records[i]
	}
	go l.run()
	return l, nil
}

// Log takes e, copying what it points to. It never blocks and does not allocate. After Close
// entries are dropped.
func (l *Logger) Log(e *Entry) {
	select {
	case <-l.closing:
		l.drop()
		return
	default:
	}
	select {
	case r := <-l.free:
		r.set(e)
		l.queue <- r
	default:
		l.drop()
	}
}

func (l *Logger) drop() {
	if l.dropped != nil {
		l.dropped()
	}
}

// Reopen writes what was logged before the call to the old file and opens Path anew, so that
// a rotated log is let go. On an error the old file stays in use.
func (l *Logger) Reopen() error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- answer:
		return <-answer
	case <-l.done:
		return ErrClosed
	}
}

// Close writes everything that was logged before the call, closes the file and returns the
// error of doing so. Further calls wait for the same end.
func (l *Logger) Close() error {
	l.closeOnce.Do(func() { close(l.closing) })
	<-l.done
	return l.closeErr
}

func (l *Logger) run() {
	defer close(l.done)
	flush := time.NewTimer(flushInterval)
	flush.Stop()
	for {
		select {
		case r := <-l.queue:
			if l.pending == 0 {
				flush.Reset(flushInterval)
			}
			l.write(r)
		case <-flush.C:
			l.flush()
		case answer := <-l.reopen:
			answer <- l.swap()
		case <-l.closing:
			l.drain()
			l.closeErr = errors.Join(l.flush(), l.sink.close())
			return
		}
	}
}

func (l *Logger) drain() {
	for {
		select {
		case r := <-l.queue:
			l.write(r)
		default:
			return
		}
	}
}

func (l *Logger) write(r *record) {
	l.line = r.appendJSON(l.line[:0])
	l.free <- r
	if len(l.line) > l.buf.Available() {
		l.flush()
	}
	l.pending++
	l.buf.Write(l.line) // cannot fail: it fits the buffer, whose error flush has cleared
}

func (l *Logger) flush() error {
	err := l.buf.Flush()
	if err != nil {
		l.buf.Reset(l.sink.w)
		if l.failed != nil {
			l.failed(err, l.pending)
		}
	}
	l.pending = 0
	return err
}

func (l *Logger) swap() error {
	l.drain()
	l.flush()
	old := l.sink
	if err := l.sink.open(); err != nil {
		l.sink = old
		return err
	}
	l.buf.Reset(l.sink.w)
	return old.close()
}

// sink is where lines go: a file that this log owns, or a stream that it borrows.
type sink struct {
	path string
	w    io.Writer
	file *os.File // nil when borrowed
}

func (s *sink) open() error {
	switch {
	case s.path == "-":
		s.w = os.Stdout
	case s.path != "":
		f, err := os.OpenFile(s.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			return fmt.Errorf("accesslog: %w", err)
		}
		s.w, s.file = f, f
	case s.w == nil:
		return errors.New("accesslog: no path; give a file or - for standard output")
	}
	return nil
}

func (s *sink) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
