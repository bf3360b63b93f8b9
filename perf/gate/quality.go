package gate

import (
	"context"
	"fmt"

	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/perf/trace"
)

// mixed consists of chats, documents and agents. hot is the same with a single system prompt of
// each kind, with which all sessions begin.
var (
	mixed = trace.Generator{Requests: 4000, Seed: 1}
	hot   = trace.Generator{
		Requests: 4000, Seed: 1, SystemPrompts: 1,
		Mix: trace.Mix{Chat: 0.3, Documents: 0.1, Agents: 0.6},
	}
)

// unlimited is the limit of a router without max_concurrent.
const unlimited = -1

// fleets are the simulations for routing quality. The fleets have 8 engines, and give the same
// figures each time on any machine.
var fleets = map[string]struct {
	generator trace.Generator
	cluster.Comparison
}{
	// Round robin keeps prefill busy for 0.75 of the time.
	"mixed": {mixed, cluster.Comparison{CacheShare: 1, Target: 0.75}},
	"hot":   {hot, cluster.Comparison{CacheShare: 1, Target: 0.75}},
	"mixed_unlimited": {
		mixed,
		cluster.Comparison{CacheShare: 1, Target: 0.75, Config: cluster.Config{Limit: unlimited}},
	},
	"hot_unlimited": {
		hot,
		cluster.Comparison{CacheShare: 1, Target: 0.75, Config: cluster.Config{Limit: unlimited}},
	},
	// Sessions pause for minutes, longer than the lifetime with which the index begins.
	"slow": {
		trace.Generator{Requests: 2000, Seed: 1},
		cluster.Comparison{CacheShare: 1, Config: cluster.Config{Speed: 0.1}},
	},
}

// These are the modes of the simulations, and their places in Report.Results.
const (
	inScore = iota
	inRoundRobin
	inDefault // predicted
)

var simulatedModes = []string{inScore: "score", inRoundRobin: "round_robin", inDefault: "predicted"}

// simulated returns the report of a fleet in the simulated modes.
func (s *site) simulated(name string) (*cluster.Report, error) {
	if r := s.reports[name]; r != nil {
		return r, nil
	}
	f := fleets[name]
	w, err := cluster.Load(f.generator.Source(), false)
	if err != nil {
		return nil, err
	}
	f.Modes = simulatedModes
	r, err := cluster.Compare(w, f.Comparison)
	if err != nil {
		return nil, err
	}
	if s.reports == nil {
		s.reports = map[string]*cluster.Report{}
	}
	s.reports[name] = r
	return r, nil
}

// missedReuse returns a gauge of the prompt tokens that could have been found cached and were not,
// as a share of all. The gauge includes prompt tokens of refused requests.
func missedReuse(fleet string, mode int) gauge {
	return func(_ context.Context, s *site) (float64, string, error) {
		r, err := s.simulated(fleet)
		if err != nil {
			return 0, "", err
		}
		of := r.Results[mode]
		missed := 1 - float64(of.CachedTokens)/(r.Reusable*float64(r.PromptTokens))
		detail := fmt.Sprintf("hit ratio %.4f of %.4f, round robin %.4f",
			of.HitRatio, r.Reusable, r.Results[inRoundRobin].HitRatio)
		return missed, detail, nil
	}
}

// ttftToRoundRobin returns a gauge of a mode's TTFT p90, divided by round robin's with the same
// arrivals.
func ttftToRoundRobin(fleet string, mode int) gauge {
	return func(_ context.Context, s *site) (float64, string, error) {
		r, err := s.simulated(fleet)
		if err != nil {
			return 0, "", err
		}
		of, to := r.Results[mode].TTFT.P90, r.Results[inRoundRobin].TTFT.P90
		return of / to, fmt.Sprintf("%.0f ms to %.0f ms", of, to), nil
	}
}
