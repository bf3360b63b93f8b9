//go:build !race

package cluster

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

// A long simulation has only one goroutine. The race detector would find nothing in a long
// simulation, and take minutes.

// TestThousandNodes simulates an hour of traffic for a thousand engines.
func TestThousandNodes(t *testing.T) {
	w := loaded(t, trace.Generator{Requests: 3000, PerSecond: 1}.Source())
	r := run(t, w, Config{Nodes: 1000, Mode: "score", Engine: engine.Config{CacheBlocks: 400}})
	if r.Answered != w.Len() || w.Span() < time.Hour/2 {
		t.Errorf("%d of %d answered in %v", r.Answered, w.Len(), w.Span())
	}
	if r.HitRatio < 0.7*w.Reusable() {
		t.Errorf("hit ratio %.3f of %.3f", r.HitRatio, w.Reusable())
	}
}

// TestAWorsePolicyIsSeen: a worse policy gives worse figures, on which the gate relies.
func TestAWorsePolicyIsSeen(t *testing.T) {
	w := generated(t, 2000)
	cfg := Config{Mode: "score", Speed: 2, Engine: engine.Config{CacheBlocks: 800}}
	good := run(t, w, cfg)
	p := *policy.Default()
	p.Score.Weights.KV = 0
	cfg.Policy = &p
	if bad := run(t, w, cfg); bad.HitRatio > 0.8*good.HitRatio || bad.TTFT.P90 < 1.5*good.TTFT.P90 {
		t.Errorf("without the prefix weight: hit ratio %.3f, TTFT p90 %.0f ms; with it %.3f, %.0f ms", bad.HitRatio,
			bad.TTFT.P90, good.HitRatio, good.TTFT.P90)
	}
}

func TestSearch(t *testing.T) {
	w := generated(t, 1500)
	cfg := Config{Engine: engine.Config{CacheBlocks: 800}}
	speed, err := Search(w, cfg, "round_robin", 0.8)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Speed, cfg.Mode = speed, "round_robin"
	if r := run(t, w, cfg); r.Utilisation < 0.797 || r.Utilisation > 0.803 {
		t.Errorf("utilisation %g at speed %g", r.Utilisation, speed)
	}
	cfg.Engine.DecodeStep = time.Second
	if _, err := Search(w, cfg, "round_robin", 0.95); err == nil {
		t.Error("an engine that decodes all the time was to prefill all the time")
	}
}
