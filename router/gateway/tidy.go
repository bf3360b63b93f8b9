package gateway

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// A crowd of clients that has gone quiet leaves memory behind: goroutines and buffers of connections that rest. A
// router that allocates nothing has the runtime collect every two minutes only, and keep what it finds.
const (
	tidyEvery = time.Minute
	tidyFrom  = 1024 // connections that have gone to rest since
)

// tidy gives that memory back to the system until stop is closed.
func tidy(rests *atomic.Int64, stop <-chan struct{}) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if rests.Load() >= tidyFrom {
			rests.Store(0)
			runtime.GC() // pools let go at the second one
			debug.FreeOSMemory()
		}
	}
}
