// Package accesslog writes one JSON line per request, and never makes a request wait.
//
// Log copies an entry into a preallocated record and hands it to one writer goroutine. If all
// records are waiting to be written, the new entry is dropped and counted. Lines reach the file at
// most a second after Log.
package accesslog

import (
	"bufio"
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/cognitora/dataplane/internal/logfile"
)

// FileMode is the mode of a new file.
const FileMode = 0o640

const (
	queueDefault = 8192
	bufferBytes  = 64 << 10
)

// Options say where lines go and how many may wait.
type Options struct {
	Path  string // file to append to; "-" for standard output
	Queue int    // entries that may wait to be written; 0: 8192; each takes about 0.6 KiB
	// Dropped, if set, is called for every entry that Log drops. Dropped must not block.
	Dropped func()
	// Failed, if set, is called with each error of the file, and the number of lines lost. Close
	// calls it for a file that hangs. The number is an upper bound: some lines may be written.
	Failed func(err error, lines int)
	// Worked, if set, is called after lines were written.
	Worked func()

	sink logfile.Sink // replaces Path in tests
}

// Logger is an open access log. A Logger's methods are safe for concurrent use.
type Logger struct {
	o     Options
	free  chan *record            // unused records
	queue *logfile.Queue[*record] // as large as free, so that Put fails only after Close
}

// New opens the log and starts its writer, which Close stops.
func New(o Options) (*Logger, error) {
	if o.sink == nil {
		f, err := logfile.Open(o.Path, FileMode)
		if err != nil {
			return nil, fmt.Errorf("accesslog: %w", err)
		}
		o.sink = f
	}
	o.Queue = cmp.Or(o.Queue, queueDefault)
	l := &Logger{o: o, free: make(chan *record, o.Queue)}
	records := make([]record, o.Queue)
	for i := range records {
		l.free <- &records[i]
	}
	l.queue = logfile.New[*record](&writer{
		log: l, sink: o.sink, buf: bufio.NewWriterSize(o.sink, bufferBytes), line: make([]byte, 0, 2048),
	}, o.Queue)
	return l, nil
}

// Log copies e, with the texts that it points to, and queues the copy. Log never blocks and does
// not allocate. After Close entries are dropped.
func (l *Logger) Log(e *Entry) {
	select {
	case r := <-l.free:
		if r.set(e); l.queue.Put(r) {
			return
		}
	default:
	}
	if l.o.Dropped != nil {
		l.o.Dropped()
	}
}

// Reopen is logfile.Queue.Reopen.
func (l *Logger) Reopen() error { return l.queue.Reopen() }

// Close is logfile.Queue.Close.
func (l *Logger) Close() error { return l.queue.Close() }

// writer writes the lines of a log. It is a logfile.Writer.
type writer struct {
	log     *Logger
	sink    logfile.Sink
	buf     *bufio.Writer
	pending atomic.Int64 // lines in buf that are not flushed
	line    []byte
}

// Write writes a record's line to the buffer.
func (w *writer) Write(r *record) {
	w.line = r.appendJSON(w.line[:0])
	w.log.free <- r
	if len(w.line) > w.buf.Available() {
		_ = w.Flush() // reports its error
	}
	w.pending.Add(1)
	w.buf.Write(w.line) // cannot fail: the line fits the buffer, and Flush has cleared its error
}

// Flush writes the buffer's lines to the file.
func (w *writer) Flush() error {
	err := w.buf.Flush()
	if err != nil {
		w.buf.Reset(w.sink)
		w.Lost(0, err)
	}
	if w.pending.Swap(0) > 0 && w.log.o.Worked != nil {
		w.log.o.Worked()
	}
	return err
}

// Lost counts lines that are not written, and those in the buffer.
func (w *writer) Lost(lines int, err error) {
	if lines += int(w.pending.Swap(0)); lines > 0 && w.log.o.Failed != nil {
		w.log.o.Failed(err, lines)
	}
}

// Reopen opens the file again.
func (w *writer) Reopen() error { return w.sink.Reopen() }

// Close closes the file.
func (w *writer) Close() error { return w.sink.Close() }
