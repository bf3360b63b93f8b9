package logfile

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter counts what a Queue asks of a Writer. Each Write waits for free unless it is nil.
type counter struct {
	free                           chan struct{}
	written, lost, reopens, closes atomic.Int64
}

func (c *counter) Write(int) {
	if c.free != nil {
		<-c.free
	}
	c.written.Add(1)
}
func (c *counter) Lost(n int, _ error) { c.lost.Add(int64(n)) }
func (c *counter) Flush() error        { return nil }
func (c *counter) Reopen() error       { c.reopens.Add(1); return nil }
func (c *counter) Close() error        { c.closes.Add(1); return nil }

// TestStuck checks that Reopen and Close give up after 2 s, that Close counts the entries that are
// left, and that the file is opened anew when the write has ended.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{free: make(chan struct{})}
		q := New(c, 4)
		for range 5 {
			q.Put(1)
			synctest.Wait()
		}
		for range 2 { // the second one finds the first one waiting
			began := time.Now()
			if err := q.Reopen(); err != ErrStuck || time.Since(began) != patience {
				t.Errorf("Reopen: %v after %v", err, time.Since(began))
			}
		}
		for c.reopens.Load() == 0 {
			select {
			case c.free <- struct{}{}:
			default:
				time.Sleep(time.Millisecond)
			}
		}
		for range 5 {
			q.Put(1)
			synctest.Wait()
		}
		began := time.Now()
		if err := q.Close(); err != ErrStuck || time.Since(began) != patience || c.lost.Load() != 4 {
			t.Errorf("Close: %v after %v, %d lost", err, time.Since(began), c.lost.Load())
		}
		if q.Put(1) || q.Reopen() == nil || q.Close() != ErrStuck {
			t.Error("open after Close")
		}
		close(c.free)
		<-q.done
		if c.closes.Load() != 1 {
			t.Errorf("closed %d times", c.closes.Load())
		}
	})
}

// TestReopenUnderLoad checks that Reopen ends while entries come without an end.
func TestReopenUnderLoad(t *testing.T) {
	c := new(counter)
	q := New(c, 64)
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !stop.Load() {
			q.Put(1)
		}
	})
	for range 100 {
		if err := q.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	all.Wait()
	if err := errors.Join(q.Close(), q.Close()); err != nil || c.reopens.Load() != 100 || c.closes.Load() != 1 {
		t.Error(err, c.reopens.Load(), c.closes.Load())
	}
}

// TestEachEntryIsWrittenOrRefused checks that no entry that Put takes is lost beside Close.
func TestEachEntryIsWrittenOrRefused(t *testing.T) {
	for range 300 {
		c := new(counter)
		q := New(c, 1024)
		var taken atomic.Int64
		var closed atomic.Bool
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for !closed.Load() {
					if q.Put(1) {
						taken.Add(1)
					} else {
						runtime.Gosched()
					}
				}
			})
		}
		for taken.Load() < 10 {
			runtime.Gosched()
		}
		q.Close()
		closed.Store(true)
		all.Wait()
		if c.written.Load() != taken.Load() {
			t.Fatalf("%d taken, %d written", taken.Load(), c.written.Load())
		}
	}
}
