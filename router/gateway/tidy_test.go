package gateway

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTidyAfterManyHaveGoneToRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rests atomic.Int64
		stop := make(chan struct{})
		go tidy(&rests, stop)
		defer synctest.Wait()
		defer close(stop)
		collections := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumForcedGC
		}
		before := collections()
		rests.Store(tidyFrom - 1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n != before || rests.Load() != tidyFrom-1 {
			t.Errorf("%d collections for a few connections", n-before)
		}
		rests.Add(1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n == before || rests.Load() != 0 {
			t.Error("what a crowd has left is kept")
		}
	})
}
