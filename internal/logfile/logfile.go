// Package logfile writes a log from one goroutine, so that nobody waits for its file.
//
// Entries wait in a queue. An entry that finds the queue full is lost; the caller counts it. Reopen
// and Close wait for a file that hangs for 2 s at most. Close counts the entries that are then left
// as lost.
package logfile

import (
	"errors"
	"sync"
	"time"
)

// Errors of Reopen and Close.
var (
	ErrClosed = errors.New("the log is closed")
	ErrStuck  = errors.New("a write of the log hangs")
)

const (
	flushEvery = time.Second     // time between two calls of Writer.Flush
	patience   = 2 * time.Second // most that Reopen and Close wait for the writer
)

// Writer writes entries. One goroutine calls its methods, except Lost.
type Writer[T any] interface {
	Write(entry T)
	// Flush is called each second, and before Reopen and Close.
	Flush() error
	Reopen() error
	Close() error
	// Lost counts entries that Close has taken out of the queue because the file hangs, and those
	// that Write has taken and not written. Write may still be running.
	Lost(entries int, err error)
}

// Queue holds the entries that wait for a Writer. A Queue is safe for concurrent use.
type Queue[T any] struct {
	w       Writer[T]
	entries chan T
	reopen  chan chan error // one waits while a write hangs
	closing chan struct{}
	close   sync.Once
	err     error // of Close
	done    chan struct{}
	last    error // of the goroutine, once done is closed

	mu     sync.RWMutex
	closed bool // entries takes no more
}

// New starts the goroutine of w, which Close stops. At most so many entries wait.
func New[T any](w Writer[T], most int) *Queue[T] {
	q := &Queue[T]{w: w, entries: make(chan T, most), reopen: make(chan chan error, 1),
		closing: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// Put queues an entry. It returns false if the entry is lost: the queue is full or closed.
func (q *Queue[T]) Put(entry T) bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return false
	}
	select {
	case q.entries <- entry:
		return true
	default:
		return false
	}
}

// Reopen writes the entries put before the call to the old file, and opens the file again, so that
// a rotated file is closed. Entries that are not written after a second go to the new file. On an
// error the old file stays in use. If a write hangs, Reopen returns ErrStuck after 2 s, and the
// file is opened again after that write.
func (q *Queue[T]) Reopen() error {
	late := time.NewTimer(patience)
	defer late.Stop()
	answer := make(chan error, 1)
	select {
	case q.reopen <- answer:
	case <-late.C:
		return ErrStuck
	}
	select {
	case err := <-answer:
		return err
	case <-q.done:
		return ErrClosed
	case <-late.C:
		return ErrStuck
	}
}

// Close writes the entries put before the call, closes the file, and returns the error of both.
// After 2 s it counts the entries that are left as lost and returns ErrStuck; the goroutine ends
// with the write that hangs. Further calls wait for the first call.
func (q *Queue[T]) Close() error {
	q.close.Do(func() {
		q.mu.Lock()
		q.closed = true
		q.mu.Unlock()
		close(q.closing)
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case <-q.done:
			q.err = q.last
		case <-late.C:
			q.err = ErrStuck
			q.abandon()
		}
	})
	return q.err
}

// abandon takes the entries from a writer that hangs.
func (q *Queue[T]) abandon() {
	for n := 0; ; n++ {
		select {
		case <-q.entries:
		default:
			q.w.Lost(n, ErrStuck)
			return
		}
	}
}

func (q *Queue[T]) run() {
	defer close(q.done)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	for {
		select {
		case entry := <-q.entries:
			q.w.Write(entry)
		case <-flush.C:
			_ = q.w.Flush() // the writer reports the error
		case answer := <-q.reopen:
			_ = q.drain(time.After(patience / 2))
			answer <- q.w.Reopen()
		case <-q.closing:
			q.last = errors.Join(q.drain(nil), q.w.Close())
			return
		}
	}
}

// drain writes the entries that wait, and leaves those that are not written when late comes.
func (q *Queue[T]) drain(late <-chan time.Time) error {
	for range len(q.entries) {
		select {
		case entry := <-q.entries:
			q.w.Write(entry)
		case <-late:
			return q.w.Flush()
		default: // Close has taken the rest
			return q.w.Flush()
		}
	}
	return q.w.Flush()
}
