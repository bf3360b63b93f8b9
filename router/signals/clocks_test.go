package signals

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"

	"github.com/cognitora/dataplane/internal/load"
)

// TestClockSteps checks a change of the agent's clock. The agent sends ages, so times follow the
// router's clock. An agent may claim that it held a request for longer than the router has waited;
// even then no time may lie in the future.
func TestClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		us := func(d time.Duration) *uint64 { v := uint64(d.Microseconds()); return &v }
		for what, held := range map[string]uint64{
			"as it was": 30_000, "not at all, its clock was set back": 0,
			"an hour, its clock was set forth": 3_600_000_000, "for ever": math.MaxUint64,
		} {
			var got []load.Reading
			var lags []time.Duration
			o := &Options{Got: func(r []load.Reading) bool { got = r; return true },
				Stats: &Stats{Lag: func(d time.Duration) { lags = append(lags, d) }}}
			asked := time.Now()
			time.Sleep(50 * time.Millisecond)
			now := time.Now()
			err := o.take(&pb.FollowResponse{HeldUs: held, Nodes: []*pb.NodeLoad{
				{KernelAgeUs: us(20 * time.Millisecond), SmAgeUs: us(0), PowerAgeUs: us(time.Hour),
					UnmovedUs: us(70 * time.Millisecond)},
			}}, asked, now)
			if err != nil || len(got) != 1 || len(lags) != 1 {
				t.Fatalf("held %s: %v, %+v, %v", what, err, got, lags)
			}
			for name, is := range map[string]struct{ age, least time.Duration }{
				"kernel": {got[0].Load.Kernel.At.Age(now), 20 * time.Millisecond},
				"sm":     {got[0].Load.GPU.At.Age(now), 0}, "power": {got[0].Load.Power.At.Age(now), time.Hour},
				"lag": {lags[0], 70 * time.Millisecond},
			} {
				if is.age < is.least || is.age > is.least+now.Sub(asked) {
					t.Errorf("held %s: the age of %s is %v, of %v to %v", what, name, is.age, is.least,
						is.least+now.Sub(asked))
				}
			}
		}
	})
}
