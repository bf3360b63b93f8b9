package leg

import (
	"math"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/policy"
)

// TestWorthOfOtherHosts: in the modes score and cost the first tokens of answers teach how long
// computing takes, and then blocks of other hosts have the worth of the time that they save, unless
// a setting fixes it. Before that they have none.
func TestWorthOfOtherHosts(t *testing.T) {
	const slow, fast = 0.5, 1e-3 // seconds for a block; computing takes 0.02
	for _, c := range []struct {
		policy string
		fetch  float32
		taught bool
		want   float64 // worth of a block
	}{
		{`{"mode":"score"}`, fast, false, 0},
		{`{"mode":"score"}`, slow, true, 0},
		{`{"mode":"score"}`, 0, true, 0},
		{`{"mode":"score"}`, fast, true, 0.75 * 0.95},
		{`{"mode":"score","score":{"tiers":{"shared":0.3}}}`, slow, false, 0.3},
		{`{"mode":"cost"}`, fast, false, 0},
		{`{"mode":"cost"}`, slow, true, 0},
		{`{"mode":"cost"}`, fast, true, 0.75 * 0.95},
		{`{"mode":"cost","cost":{"host_cache_hit_weight":0.5}}`, fast, true, 0.5 * 0.95},
		{`{"mode":"cost","cost":{"shared_cache_multiplier":0.3}}`, slow, false, 0.3},
	} {
		d, now := still(t, Options{}, twoNodes()[:1]...), time.Unix(1_700_000_000, 0)
		decide(t, d, c.policy)
		rehearse := func(blocks int, reach holdings.Reach) Rehearsal {
			warm := func(*fleet.Node) holdings.Reach { return reach }
			r, err := d.Rehearse(Piece{Keys: newKeys(blocks), Warm: warm}, now)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if c.taught {
			for i := range 128 {
				blocks := 40 + i%7*60
				r := rehearse(blocks, holdings.Reach{Device: holdings.Unknown})
				waits := rehearse(400, holdings.Reach{Device: holdings.Unknown}) // its answer tells nothing
				r.Begun(now.Add(time.Duration(blocks) * 20 * time.Millisecond))
				waits.Begun(now.Add(time.Minute))
				r.Finish(usage.Counts{}, now.Add(9*time.Second))
				waits.Finish(usage.Counts{}, now.Add(time.Minute))
				now = now.Add(time.Minute)
			}
		}
		r := rehearse(400, holdings.Reach{Device: holdings.Unknown, Host: 100, Shared: 300, Fetch: c.fetch})
		var e policy.Explanation
		r.l.decide(now, &e)
		worth := max(e.Terms[0].Elsewhere, e.Terms[0].Cost.Elsewhere)
		if math.Abs(worth-c.want) > 0.02*c.want {
			t.Errorf("%s, %g s for a block, taught: %v: a worth of %g, want %g; %s", c.policy, c.fetch, c.taught, worth,
				c.want, e.Terms[0].Formula)
		}
		if n := testing.AllocsPerRun(100, func() { r.l.decide(now, nil) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
		r.Finish(usage.Counts{}, now)
	}
}
