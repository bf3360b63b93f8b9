package gateway

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Two things leave memory behind. Clients that go quiet leave the goroutines and buffers of their
// parked connections. Long prompts leave the memory of their text. Without further allocations the
// Go runtime collects only every two minutes, and keeps the freed memory.
const (
	tidyEvery = time.Minute
	tidyFrom  = 1024     // connections parked since the last tidy
	tidyBytes = 64 << 20 // bytes of long bodies since the last tidy
	longBody  = 4 << 20  // a longer prompt's memory is not kept for the next one
)

// litter counts the memory left behind since the last tidy.
type litter struct {
	parked atomic.Int64 // connections that have been parked
	bytes  atomic.Int64 // of long bodies
}

// body counts one body of n bytes.
func (l *litter) body(n int) {
	if n > longBody {
		l.bytes.Add(int64(n))
	}
}

// tidy returns the memory to the system until stop is closed.
func (l *litter) tidy(stop <-chan struct{}) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if l.parked.Load() >= tidyFrom || l.bytes.Load() >= tidyBytes {
			l.parked.Store(0)
			l.bytes.Store(0)
			runtime.GC() // pools free their memory at the second collection
			debug.FreeOSMemory()
		}
	}
}
