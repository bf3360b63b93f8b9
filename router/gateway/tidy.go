package gateway

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// A crowd of clients that has gone quiet leaves memory behind, goroutines and buffers of
// parked connections, and so do long prompts, whose text is read into memory of its own. A
// router that allocates nothing else has the runtime collect every two minutes only, and keep what
// it finds.
const (
	tidyEvery = time.Minute
	tidyFrom  = 1024     // connections that have been parked since
	tidyBytes = 64 << 20 // of long bodies since
	longBody  = 4 << 20  // bytes from which on the text of a prompt is not kept for the next one
)

// litter is what has been left behind since tidy has last looked.
type litter struct {
	parked atomic.Int64 // connections that have been parked
	bytes  atomic.Int64 // of long bodies
}

// body counts one of n bytes.
func (l *litter) body(n int) {
	if n > longBody {
		l.bytes.Add(int64(n))
	}
}

// tidy gives that memory back to the system until stop is closed.
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
			runtime.GC() // pools let go at the second one
			debug.FreeOSMemory()
		}
	}
}
