package gate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/sim/engine"
)

// bursts are 200 requests with 6,000 tokens in common that meet 8 cold engines: all at once, and
// spread over a few seconds.
var bursts = []cluster.Burst{{}, {Over: 4 * time.Second}}

// burstCache holds all blocks of a burst on every engine.
const burstCache = 4000

// burst simulates b with the given limit on each node; the engines' batches are as large.
func burst(b cluster.Burst, limit int, mode string) (*cluster.Result, error) {
	return cluster.Run(b.Workload(), cluster.Config{
		Mode: mode, Limit: limit, Engine: engine.Config{CacheBlocks: burstCache, MaxSeqs: max(limit, 0)},
	})
}

// coldBurst is the largest of what measure makes of the bursts.
func coldBurst(limit int, measure func(score, roundRobin *cluster.Result) float64) gauge {
	return func(context.Context, *site) (float64, string, error) {
		var worst float64
		var details []string
		for _, b := range bursts {
			score, err := burst(b, limit, "score")
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

// busiest is the busiest node's requests as a multiple of the mean. A refused request counts as
// the worst that can be.
func busiest(score, _ *cluster.Result) float64 {
	if score.Refused > 0 {
		return float64(score.Requests)
	}
	return score.BusiestToMean
}

func meanTTFT(score, roundRobin *cluster.Result) float64 {
	return score.TTFT.Mean / roundRobin.TTFT.Mean
}
