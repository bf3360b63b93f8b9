// Package logfile writes a log from one goroutine, so that nobody waits for its file.
//
// Entries wait in a queue. An entry that finds the queue full is lost; the caller counts it.
package logfile

import (
	"errors"
	"sync"
	"time"
)

// ErrClosed is the error of Reopen after Close.
var ErrClosed = errors.New("the log is closed")

// flushEvery is the time between two calls of Writer.Flush.
const flushEvery = time.Second

// Writer writes entries. One goroutine calls its methods.
type Writer[T any] interface {
	Write(entry T)
	// Flush is called each second, and before Reopen and Close.
	Flush() error
	Reopen() error
	Close() error
}

// Queue holds the entries that wait for a Writer. A Queue is safe for concurrent use.
type Queue[T any] struct {
	w       Writer[T]
	entries chan T
	reopen  chan chan error
	closing chan struct{}
	closed  sync.Once
	done    chan struct{}
	err     error // of Close
}

// New starts the goroutine of w, which Close stops. At most so many entries wait.
func New[T any](w Writer[T], most int) *Queue[T] {
	q := &Queue[T]{w: w, entries: make(chan T, most), reopen: make(chan chan error),
		closing: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// Put queues an entry. It returns false if the entry is lost: the queue is full or closed.
func (q *Queue[T]) Put(entry T) bool {
	select {
	case <-q.closing:
		return false
	default:
	}
	select {
	case q.entries <- entry:
		return true
	default:
		return false
	}
}

// Reopen writes the entries put before the call to the old file, and opens the file again, so that
// a rotated file is closed. On an error the old file stays in use.
func (q *Queue[T]) Reopen() error {
	answer := make(chan error, 1)
	select {
	case q.reopen <- answer:
		return <-answer
	case <-q.done:
		return ErrClosed
	}
}

// Close writes the entries put before the call, closes the file, and returns the error of both.
// Further calls wait for the first call.
func (q *Queue[T]) Close() error {
	q.closed.Do(func() { close(q.closing) })
	<-q.done
	return q.err
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
			_ = q.drain()
			answer <- q.w.Reopen()
		case <-q.closing:
			q.err = errors.Join(q.drain(), q.w.Close())
			return
		}
	}
}

// drain writes the entries that wait.
func (q *Queue[T]) drain() error {
	for {
		select {
		case entry := <-q.entries:
			q.w.Write(entry)
		default:
			return q.w.Flush()
		}
	}
}
