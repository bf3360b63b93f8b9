package up

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestStopHasOneLimit: parts that each wait for a request of their own share one limit.
func TestStopHasOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := newParts(t.Context())
		for range 3 {
			ps.run(part{Name: "waits"}, func(drain, force context.Context) error {
				<-drain.Done()
				<-force.Done()
				return nil
			})
		}
		begin := time.Now()
		if err := ps.stop(io.Discard, time.Minute); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}
