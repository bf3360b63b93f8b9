package leg

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
)

// TestPromotesWhatPays: blocks of other hosts are fetched ahead of a request only if that is faster
// than computing them, as far as both times are known.
func TestPromotesWhatPays(t *testing.T) {
	const slow, fast = 0.5, 1e-6 // seconds for a block
	for _, c := range []struct {
		mode   policy.Mode
		taught bool // that 2000 tokens take 10 s, 0.08 s for a block
		fetch  float32
		want   int32
	}{
		{policy.Predicted, true, slow, 60}, {policy.Predicted, true, fast, 100}, {policy.Predicted, true, 0, 100},
		{policy.Predicted, false, slow, 60}, {policy.Predicted, false, fast, 100},
		{policy.Cost, true, slow, 60}, {policy.Cost, true, fast, 100},
		{policy.Cost, false, slow, 100},
	} {
		d := still(t, Options{}, twoNodes()...)
		p := policy.Default()
		p.Mode = c.mode
		d.policy.Store(p)
		warm := holdings.Reach{Device: 10, Host: 50, Disk: 60, Shared: 100, Fetch: c.fetch}
		r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(*fleet.Node) holdings.Reach { return warm }},
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if c.taught {
			for range 40 {
				f := predict.First{Work: predict.Prompt(2000, 0), Step: 0.01}
				e := r.l.pool.members[0].engine
				s := e.Speed()
				s.Forecast(&f)
				e.LearnFirst(&f, 10, time.Now())
			}
		}
		if got := r.l.promotes(0); got.Shared != c.want || got.Disk != warm.Disk || got.Host != warm.Host {
			t.Errorf("%+v: %+v", c, got)
		}
		if c.want == warm.Disk { // a minute later some come all the same, once
			unpaid := &r.l.pool.members[0].node.unpaid
			unpaid.Add(-int64(remeasure))
			if one, two := r.l.promotes(0).Shared, r.l.promotes(0).Shared; one != 100 || two != c.want {
				t.Errorf("%+v: %d and %d blocks after a minute", c, one, two)
			}
		}
		r.Finish(usage.Counts{}, time.Now())
	}
}

// TestPromotesWhatTheEngineUses: once an engine has shown that it computes the blocks of other
// hosts, few of them are fetched ahead of a request.
func TestPromotesWhatTheEngineUses(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	warm := holdings.Reach{Device: 10, Host: 10, Disk: 10, Shared: 400}
	r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(*fleet.Node) holdings.Reach { return warm }}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.l.promotes(0).Shared; got != 400 {
		t.Errorf("untaught: %d", got)
	}
	for range 16 {
		r.l.pool.members[0].node.usage.Learn(warm, 10, 160, 16)
	}
	if got := r.l.promotes(0).Shared; got > 20 {
		t.Errorf("an engine that uses none: %d", got)
	}
	r.Finish(usage.Counts{}, time.Now())
}
