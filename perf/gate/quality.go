package gate

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

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
// figures each time on any machine. Figures are means over seeds workloads: what one workload gives
// changes by a third with any change of the code, as by chance.
var fleets = map[string]struct {
	seeds     int
	generator trace.Generator
	cluster.Comparison
}{
	// Round robin keeps prefill busy for 0.75 of the time.
	"mixed": {4, mixed, cluster.Comparison{CacheShare: 1, Target: 0.75}},
	"hot":   {4, hot, cluster.Comparison{CacheShare: 1, Target: 0.75}},
	"mixed_unlimited": {
		1, mixed,
		cluster.Comparison{CacheShare: 1, Target: 0.75, Config: cluster.Config{Limit: unlimited}},
	},
	"hot_unlimited": {
		1, hot,
		cluster.Comparison{CacheShare: 1, Target: 0.75, Config: cluster.Config{Limit: unlimited}},
	},
	// Sessions pause for minutes, longer than the lifetime with which the index begins.
	"slow": {
		1, trace.Generator{Requests: 2000, Seed: 1},
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

// simulated returns the reports of a fleet in the simulated modes, one for each seed.
func (s *site) simulated(name string) ([]*cluster.Report, error) {
	if all := s.reports[name]; all != nil {
		return all, nil
	}
	all := make([]*cluster.Report, fleets[name].seeds)
	var group errgroup.Group
	for i := range all {
		group.Go(func() error {
			f := fleets[name]
			f.generator.Seed += uint64(i)
			w, err := cluster.Load(f.generator.Source(), false)
			if err != nil {
				return err
			}
			f.Modes = simulatedModes
			all[i], err = cluster.Compare(w, f.Comparison)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if s.reports == nil {
		s.reports = map[string][]*cluster.Report{}
	}
	s.reports[name] = all
	return all, nil
}

// missedReuse returns a gauge of the prompt tokens that could have been found cached and were not,
// as a share of all, on average over the seeds. The gauge includes prompt tokens of refused
// requests.
func missedReuse(fleet string, mode int) gauge {
	return func(_ context.Context, s *site) (float64, string, error) {
		all, err := s.simulated(fleet)
		if err != nil {
			return 0, "", err
		}
		missed, detail := 0.0, "hit ratios"
		for _, r := range all {
			of := r.Results[mode]
			missed += 1 - float64(of.CachedTokens)/(r.Reusable*float64(r.PromptTokens))
			detail += fmt.Sprintf(" %.3f of %.3f,", of.HitRatio, r.Reusable)
		}
		detail += fmt.Sprintf(" round robin first %.3f", all[0].Results[inRoundRobin].HitRatio)
		return missed / float64(len(all)), detail, nil
	}
}

// ttftToRoundRobin returns a gauge of a mode's TTFT p90, divided by round robin's with the same
// arrivals, on average over the seeds.
func ttftToRoundRobin(fleet string, mode int) gauge {
	return func(_ context.Context, s *site) (float64, string, error) {
		all, err := s.simulated(fleet)
		if err != nil {
			return 0, "", err
		}
		ratio, detail := 0.0, ""
		for _, r := range all {
			of, to := r.Results[mode].TTFT.P90, r.Results[inRoundRobin].TTFT.P90
			ratio += of / to
			detail += fmt.Sprintf(", %.0f ms to %.0f ms", of, to)
		}
		return ratio / float64(len(all)), detail[2:], nil
	}
}
