package cluster

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestHandoverByHand: one node computes prompts of 1000 tokens in a second each. Their blocks take
// 5 ms to the other node, whose steps take 10 ms.
func TestHandoverByHand(t *testing.T) {
	cfg := Config{
		Nodes: 2, Mode: "predicted", Gaps: true, Disagg: leg.Disagg{Always: true},
		Roles: []cluster.Role{cluster.RolePrefill, cluster.RoleDecode},
		Engine: engine.Config{CacheBlocks: 64, PrefillTokensPerSecond: 1000, DecodeStep: 10 * time.Millisecond,
			DecodePerSequence: time.Nanosecond},
	}
	s, err := newSimulation(alone(3, 0, 0, 5000), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.run()
	r := s.result
	near := func(got, want float64) bool { return got >= want && got < want+0.001 }
	want := []float64{1015, 1015, 2015} // in order; the second prompt waits for the first
	for i, got := range r.singles.all.ttft {
		if !near(got, want[i]) {
			t.Errorf("TTFT %d is %v ms, want %v", i, got, want[i])
		}
	}
	if g := r.gaps(); g.Count != 6 || !near(g.P50, 10) || !near(g.P99, 10) {
		t.Errorf("gaps %+v", g)
	}
	if r.HandedOver != 3 || r.Answered != 3 || !slices.Equal(r.perNode, []int{0, 3}) {
		t.Errorf("%d handed over, %d answered, by node %v", r.HandedOver, r.Answered, r.perNode)
	}
	p, d := s.nodes[0].model, s.nodes[1].model
	if a, b := p.Usage(), d.Usage(); a.Prefilled != 3000 || b.Prefilled != 0 || a.UsedBlocks+b.UsedBlocks != 0 {
		t.Errorf("in the end %+v and %+v", a, b)
	}
	for i := range s.workload.requests { // each prompt has one full block
		blocks := s.workload.requests[i].blocks()[:1]
		if p.Cached(blocks) != 1 || d.Cached(blocks) != 1 {
			t.Errorf("of prompt %d %d and %d blocks are cached", i, p.Cached(blocks), d.Cached(blocks))
		}
	}
	cfg.Roles = cfg.Roles[:1]
	if _, err := Run(s.workload, cfg); err == nil {
		t.Error("a role for one of two nodes was taken")
	}
}

// TestDisaggIsHonest: with fixed roles the prompts of 512 tokens and more are computed at the nodes
// of role prefill, once, and the others there where they are answered. Nothing is left over.
func TestDisaggIsHonest(t *testing.T) {
	traffics, err := TrafficsNamed([]string{"mixed"})
	if err != nil {
		t.Fatal(err)
	}
	traffics[0].Requests = 300
	w, cfg, err := traffics[0].At(3, 6)
	if err != nil {
		t.Fatal(err)
	}
	trial := DisaggTrial{Prefill: []int{4}}
	fleets, err := trial.contestants(8)
	if err != nil {
		t.Fatal(err)
	}
	short := 0
	for _, r := range w.requests {
		if r.prompt < colocateBelow {
			short += r.prompt
		}
	}
	if short == 0 {
		t.Fatal("no prompt is short")
	}
	for _, fleet := range fleets {
		c := cfg
		c.Mode = fleet.Mode
		fleet.Change(&c)
		s, err := newSimulation(w, c)
		if err != nil {
			t.Fatal(err)
		}
		s.run()
		r, prefilled := s.result, [2]int{}
		for i := range s.nodes {
			u := s.nodes[i].model.Usage()
			if prefilled[i/4] += u.Prefilled; u.Preemptions > 0 || u.UsedBlocks > 0 {
				t.Errorf("%s, node %d: %+v", fleet.Name, i, u)
			}
		}
		for n := range s.routers[0].nodes {
			if n.InFlight() != 0 {
				t.Errorf("%s: %s has %d requests in the end", fleet.Name, n.ID, n.InFlight())
			}
		}
		if got, want := prefilled[0]+prefilled[1], int(r.PromptTokens-r.CachedTokens); got != want {
			t.Errorf("%s: %d prompt tokens computed, want %d", fleet.Name, got, want)
		}
		switch always := strings.HasSuffix(fleet.Name, always); {
		case r.Answered != w.Len(), fleet.Name == bothNever && r.HandedOver > 0:
			t.Errorf("%s: %d answered, %d handed over", fleet.Name, r.Answered, r.HandedOver)
		case always && (prefilled[1] > short || r.HandedOver == 0):
			t.Errorf("%s: the nodes of role decode computed %d tokens; short prompts have %d", fleet.Name, prefilled[1],
				short)
		}
		again, err := Run(w, c)
		if err != nil || !reflect.DeepEqual(again.TTFT, r.TTFT) || !reflect.DeepEqual(again.Gaps, r.Gaps) ||
			again.HandedOver != r.HandedOver {
			t.Errorf("%s: a second time it differs (%v)", fleet.Name, err)
		}
	}
}

// TestJudgeDisagg compares the fleets in both ways.
func TestJudgeDisagg(t *testing.T) {
	traffics, err := TrafficsNamed([]string{"long"})
	if err != nil {
		t.Fatal(err)
	}
	traffics[0].Requests = 120
	trial := DisaggTrial{Traffics: traffics, Loads: []float64{0.4}, Prefill: []int{4}, Seeds: 2, FirstSeed: 5}
	j, err := JudgeDisagg(context.Background(), trial)
	if err != nil {
		t.Fatal(err)
	}
	if len(j.Rows) != 4 || len(j.Against) != 2 || j.Against[1].Fleet != "4:4, automatic" {
		t.Fatalf("%d rows, compared %+v", len(j.Rows), j.Against)
	}
	for _, a := range j.Against {
		for _, f := range disaggFigures {
			better := j.Rows[0] // both, never
			if split := j.Rows[2]; split.Means[f] < better.Means[f] {
				better = split
			}
			own := j.Rows[slices.IndexFunc(j.Rows, func(r *Row) bool { return r.Mode == a.Fleet })].Means[f]
			percent, got := 100*(own/better.Means[f]-1), a.Figures[f]
			if got.Other != better.Mode || math.Abs(got.Percent-percent) > 1e-6 {
				t.Errorf("%s of %s: %+v, want %v %% of %s", f, a.Fleet, got, percent, better.Mode)
			}
		}
	}
	for _, want := range []string{"| long | 0.4 | 4:4, always | ", " | 100 % |",
		"| long | 0.4 | 4:4 | both, automatic | ", "Means over the seeds 5 to 6."} {
		if text := j.Markdown(); !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	for _, bad := range [][]int{{0}, {8}, {4, 4}} {
		trial.Prefill = bad
		if _, err := JudgeDisagg(context.Background(), trial); err == nil {
			t.Errorf("%v nodes of role prefill were taken", bad)
		}
	}
}
