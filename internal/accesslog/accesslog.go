// Package accesslog writes one JSON line per request, and never makes a request wait.
//
// Log copies an entry into a preallocated record and hands it to one writer goroutine. If all
// records are waiting to be written, the new entry is dropped and counted. Lines reach the file at
// most a second after Log.
package accesslog

import (
	"bufio"
	"cmp"
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

// ErrClosed is the error of Reopen after Close.
var ErrClosed = errors.New("accesslog: closed")

// Options say where lines go and how many may wait.
type Options struct {
	Path  string // file to append to; "-" for standard output
	Queue int    // entries that may wait to be written; 0: 8192; each takes about 0.6 KiB
	// Dropped, if set, is called for every entry that Log drops. Dropped must not block.
	Dropped func()
	// Failed, if set, is called by the writer with each error of the file, and the number of lines
	// lost. The number is an upper bound, because lines may be written in part.
	Failed func(err error, lines int)

	writer io.Writer // replaces Path in tests
}

// Logger is an open access log. A Logger's methods are safe for concurrent use.
type Logger struct {
	dropped func()
	failed  func(error, int)

	free  chan *record // unused records
	queue chan *record // as large as free, so that sending never blocks

	reopen    chan chan error
	closing   chan struct{}
	closeOnce sync.Once
	done      chan struct{}
	closeErr  error

	sink    sink
	buf     *bufio.Writer
	pending int // lines in buf that are not flushed
	line    []byte
}

// New opens the log and starts its writer, which Close stops.
func New(o Options) (*Logger, error) {
	s := sink{path: o.Path, w: o.writer}
	if err := s.open(); err != nil {
		return nil, err
	}
	o.Queue = cmp.Or(o.Queue, queueDefault)
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

// Log copies e, with the texts that it points to, and queues the copy. Log never blocks and does
// not allocate. After Close entries are dropped.
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

// Reopen writes all entries logged before the call to the old file, and opens Path again, so that a
// rotated file is closed. On an error the old file stays in use.
func (l *Logger) Reopen() error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- answer:
		return <-answer
	case <-l.done:
		return ErrClosed
	}
}

// Close writes all entries that were logged before the call, closes the file, and returns the error
// of both. Further calls wait for the first call.
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
	l.buf.Write(l.line) // cannot fail: the line fits the buffer, and flush has cleared its error
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

// sink is the destination of lines: a file that this log owns, or a stream that it borrows.
type sink struct {
	path string
	w    io.Writer
	file *os.File // nil for a borrowed stream
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
