package router_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waits has a thread on each CPU of the host wake every millisecond, and returns a function that says how much later than that one of them was back, at most, since the last call. What must
// happen within milliseconds is held to that where nobody had to wait for a CPU meanwhile.
func waits(t *testing.T) func() time.Duration {
	t.Helper()
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	var worst atomic.Int64
	var stop atomic.Bool
	var threads sync.WaitGroup
	for cpu := range len(may) * 64 {
		if !may.IsSet(cpu) {
			continue
		}
		threads.Go(func() {
			runtime.LockOSThread() // not unlocked: the thread ends with its affinity
			var one unix.CPUSet
			one.Set(cpu)
			_ = unix.SchedSetaffinity(0, &one) // elsewhere it wakes as well
			for !stop.Load() {
				from := time.Now()
				_, _ = unix.Poll(nil, 1)
				late := int64(time.Since(from) - time.Millisecond)
				for was := worst.Load(); late > was && !worst.CompareAndSwap(was, late); was = worst.Load() {
				}
			}
		})
	}
	t.Cleanup(func() {
		stop.Store(true)
		threads.Wait()
	})
	return func() time.Duration { return time.Duration(worst.Swap(0)) }
}
