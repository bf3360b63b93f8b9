package gate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
)

const (
	pairs       = 3
	ratioWindow = 1500 * time.Millisecond
)

// Keys cost little, so many short pairs are taken.
const (
	keysPairs  = 60
	keysWindow = 100 * time.Millisecond
)

// keysCPU measures the CPU time per 2 KB chat with an API key. It is divided by that of a router
// without keys.
func keysCPU(ctx context.Context, s *site) (float64, string, error) {
	return s.cpuRatio(ctx, "chat-2k", withKeys, ours, keysPairs, keysWindow)
}

// cpuRatio returns a gauge of the router's CPU time per unit of a scenario. The CPU time is divided
// by that of a reference and measured in pairs.
func cpuRatio(scenario, reference string) gauge {
	return func(ctx context.Context, s *site) (float64, string, error) {
		return s.cpuRatio(ctx, scenario, ours, reference, pairs, ratioWindow)
	}
}

// cpuRatio measures pairs of one contestant and a reference.
func (s *site) cpuRatio(ctx context.Context, scenario, name, reference string, pairs int, window time.Duration) (
	float64, string, error) {
	other, err := s.start(ctx, reference)
	if err != nil {
		return 0, "", err
	}
	router, err := s.start(ctx, name)
	if err != nil {
		return 0, "", err
	}
	var of, to []float64
	for range pairs {
		for _, side := range []struct {
			on   *compare.Running
			into *[]float64
		}{{router, &of}, {other, &to}} {
			f, err := compare.Measure(compare.ScenarioNamed(scenario), side.on, window, s.interrupted)
			if err != nil {
				return 0, "", err
			}
			*side.into = append(*side.into, f["cpu_us"])
		}
	}
	r := compare.Ratios(of, to)
	return r.Median, fmt.Sprintf("%.1f µs to %.1f µs", slices.Min(of), slices.Min(to)), nil
}

// cpuInStep returns a gauge of the CPU time of a contestant for the tokens of one stream, divided
// by that of a reference. The engine sends each token when the previous one has arrived, so that
// the machine does not decide how many tokens come together. Other processes can only add to the
// cost, so the least value of all measurements counts on either side.
func cpuInStep(contestant, reference string) gauge {
	return func(ctx context.Context, s *site) (float64, string, error) {
		for range pairs {
			for _, name := range []string{contestant, reference} {
				v, err := s.stepCPU(ctx, name)
				if err != nil {
					return 0, "", err
				}
				if least, ok := s.inStep[name]; !ok || v < least {
					s.inStep[name] = v
				}
			}
		}
		of, to := s.inStep[contestant], s.inStep[reference]
		return of / to, fmt.Sprintf("%.1f µs to %.1f µs", of, to), nil
	}
}

// stepCPU measures the CPU time of a contestant for a token in step, in µs.
func (s *site) stepCPU(ctx context.Context, name string) (float64, error) {
	r, err := s.start(ctx, name)
	if err != nil {
		return 0, err
	}
	before, err := r.Usage()
	if err == nil {
		err = s.tokens(r, countedTokens)
	}
	if err != nil {
		return 0, err
	}
	after, err := r.Usage()
	return float64(after.Sub(before).CPU.Microseconds()) / countedTokens, err
}
