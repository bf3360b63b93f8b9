package gate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/sim/engine"
)

// bursts are 200 requests to 8 cold engines, with 6,000 tokens in common: all at once, and spread
// over a few seconds.
var bursts = []cluster.Burst{{}, {Over: 4 * time.Second}}

// burstCache is an engine's cache, in blocks, with room for all blocks of a burst.
const burstCache = 4000

// burst simulates b with this limit on each node, and engines with batches of the same size.
func burst(b cluster.Burst, limit int, mode string) (*cluster.Result, error) {
	return cluster.Run(b.Workload(), cluster.Config{
		Mode: mode, Limit: limit, Engine: engine.Config{CacheBlocks: burstCache, MaxSeqs: max(limit, 0)},
	})
}

// coldBurst returns a gauge of measure's largest value over the bursts, in a mode of the policy.
func coldBurst(mode string, limit int, measure func(score, roundRobin *cluster.Result) float64) gauge {
	return func(context.Context, *site) (float64, string, error) {
		var worst float64
		var details []string
		for _, b := range bursts {
			score, err := burst(b, limit, mode)
			if err != nil {
				return 0, "", err
			}
			roundRobin, err := burst(b, limit, "round_robin")
			if err != nil {
				return 0, "", err
			}
			worst = max(worst, measure(score, roundRobin))
			details = append(details, fmt.Sprintf("over %v: busiest %.2f of the mean, %d prompt tokens computed, "+
				"TTFT mean %.0f and p99 %.0f ms, of round robin %.0f and %.0f",
				b.Over, score.BusiestToMean, score.PromptTokens-score.CachedTokens,
				score.TTFT.Mean, score.TTFT.P99, roundRobin.TTFT.Mean, roundRobin.TTFT.P99))
		}
		return worst, strings.Join(details, "; "), nil
	}
}

// busiest returns the busiest node's requests as a multiple of the mean. A refused request gives
// the worst possible value.
func busiest(score, _ *cluster.Result) float64 {
	if score.Refused > 0 {
		return float64(score.Requests)
	}
	return score.BusiestToMean
}

func meanTTFT(score, roundRobin *cluster.Result) float64 {
	return score.TTFT.Mean / roundRobin.TTFT.Mean
}
