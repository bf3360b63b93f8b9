package push

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/load"
)

// TestClockSteps: a step of the wall clock since a reading, or a reading by another host's clock,
// does not change when readings are sent. The readings' age is never negative.
func TestClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		f := s.join()
		defer s.leave(f)
		for i, step := range []time.Duration{0, time.Hour, -time.Hour, 1000 * time.Hour, -1000 * time.Hour} {
			at := time.Now().Round(0).Add(step) // Round(0) removes the monotonic reading
			taken := load.Taken{Time: at}
			s.Offer(at, []load.Reading{{Node: "n", Load: load.Load{
				Kernel: load.Kernel{At: taken, CPUPct: load.Known(float64(20 * i))},
				GPU:    load.GPU{At: taken}, Power: load.Power{At: taken},
			}}})
			asked := time.Now()
			if !f.wait(t.Context(), asked) {
				t.Fatal("no answer")
			}
			now := time.Now()
			if took := now.Sub(asked); took > MinInterval {
				t.Errorf("clock set by %v: told after %v", step, took)
			}
			a := f.answer(now, asked)
			n := a.Nodes[0]
			want := uint64(max(now.Sub(at), 0).Microseconds())
			if n.GetCpuPct() != float64(20*i) || n.GetKernelAgeUs() != want || n.GetSmAgeUs() != want ||
				n.GetPowerAgeUs() != want {
				t.Errorf("clock set by %v: %v, want ages of %d us", step, n, want)
			}
			if most := uint64(2001 * time.Hour / time.Microsecond); n.GetUnmovedUs() > most ||
				a.HeldUs > uint64(MinInterval.Microseconds()) {
				t.Errorf("clock set by %v: unmoved for %d us, held for %d", step, n.GetUnmovedUs(), a.HeldUs)
			}
		}
	})
}
