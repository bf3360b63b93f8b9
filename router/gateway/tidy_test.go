package gateway

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestTidy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left litter
		stop := make(chan struct{})
		go left.tidy(stop)
		defer synctest.Wait()
		defer close(stop)
		collections := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumForcedGC
		}
		before := collections()
		left.parked.Store(tidyFrom - 1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n != before || left.parked.Load() != tidyFrom-1 {
			t.Errorf("%d collections for a few connections", n-before)
		}
		left.parked.Add(1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n == before || left.parked.Load() != 0 {
			t.Error("what a crowd has left is kept")
		}
		before = collections()
		left.body(longBody)
		left.body(tidyBytes - 1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n != before {
			t.Error("there is nothing to collect yet")
		}
		left.body(longBody + 1)
		time.Sleep(tidyEvery + 1)
		synctest.Wait()
		if n := collections(); n == before || left.bytes.Load() != 0 {
			t.Error("what long prompts have left is kept")
		}
	})
}
