package ab

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
)

// Report is the result of a comparison.
type Report struct {
	Sides    [2]string `json:"sides"`
	Model    string    `json:"model"`
	Rounds   int       `json:"rounds"`
	Requests int       `json:"requests"`     // of a run
	Span     float64   `json:"span_seconds"` // from the first request of a run to the last
	Speed    float64   `json:"speed"`
	Reset    Reset     `json:"reset"`
	// Reusable is the hit ratio of one cache without a bound, by the trace's own tokens.
	Reusable float64 `json:"reusable"`
	// Scale is how many prompt tokens the engines count for each of the trace's; 0: not measured.
	Scale   float64  `json:"prompt_scale"`
	Metrics []Metric `json:"metrics"`
	Refused [2]int   `json:"refused"` // answers 429, 503 and 529 of all rounds
	Failed  [2]int   `json:"failed"`  // other requests without a complete answer
	// Late is the largest delay of this client in sending a request. A large value means that this
	// machine was too slow for the speed.
	Late float64             `json:"late_seconds"`
	Runs [][2]*replay.Result `json:"runs"` // by round and side
}

// Metric compares one figure.
type Metric struct {
	Name  string `json:"name"`
	Title string `json:"-"`
	// Sides has each side's median over the rounds with its interval. It is nil if some run has not
	// measured the figure.
	Sides *[2]compare.Interval `json:"sides"`
	// Ratio is the interval of the second side's value divided by the first one's of the same
	// round. It is nil if some run has not measured the figure, or a divisor is 0.
	Ratio *compare.Interval `json:"ratio"`
}

// figures lists the metrics. A value that is not a number was not measured.
var figures = []struct {
	name, title string
	of          func(*replay.Result) float64
}{
	{"ttft_p50_ms", "TTFT p50 ms", func(r *replay.Result) float64 { return ms(r.TTFT.P50) }},
	{"ttft_p90_ms", "TTFT p90 ms", func(r *replay.Result) float64 { return ms(r.TTFT.P90) }},
	{"ttft_p99_ms", "TTFT p99 ms", func(r *replay.Result) float64 { return ms(r.TTFT.P99) }},
	{"itl_p50_ms", "ITL p50 ms", func(r *replay.Result) float64 { return ms(r.ITL.P50) }},
	{"itl_p90_ms", "ITL p90 ms", func(r *replay.Result) float64 { return ms(r.ITL.P90) }},
	{"itl_p99_ms", "ITL p99 ms", func(r *replay.Result) float64 { return ms(r.ITL.P99) }},
	{"e2e_p50_ms", "whole answer p50 ms", func(r *replay.Result) float64 { return ms(r.E2E.P50) }},
	{"e2e_p90_ms", "whole answer p90 ms", func(r *replay.Result) float64 { return ms(r.E2E.P90) }},
	{"hit_ratio", "hit ratio", hitRatio},
	{"busiest_share", "busiest node's share", busiest},
}

// ms converts seconds; 0 stands for a time that was not measured.
func ms(seconds float64) float64 {
	if seconds == 0 {
		return math.NaN()
	}
	return 1000 * seconds
}

// hitRatio returns the hit ratio, unless no engine has counted its cached tokens.
func hitRatio(r *replay.Result) float64 {
	if r.PromptTokens == 0 {
		return math.NaN()
	}
	return r.HitRatio
}

// busiest returns the largest share of a node, if the router names its nodes.
func busiest(r *replay.Result) float64 {
	share := math.NaN()
	for _, n := range r.Nodes {
		if n.ID != "" && !(share >= n.Share) {
			share = n.Share
		}
	}
	return share
}

// text formats a ratio, or "-" if it was not measured.
func text(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.3f", v)
}

// report compares the runs of complete rounds.
func (r *runner) report(rounds [][2]*replay.Result) *Report {
	p := &Report{
		Sides: [2]string{r.Sides[0].Name, r.Sides[1].Name}, Model: r.Replay.Model, Rounds: len(rounds),
		Requests: len(r.Requests), Span: r.Span().Seconds(), Speed: r.Replay.Speed, Reset: r.Reset, Runs: rounds,
	}
	p.Reusable = reusable(r.Requests, r.Replay.Text.Spread)
	for _, f := range figures {
		var values [2][]float64
		for _, pair := range rounds {
			for side, run := range pair {
				values[side] = append(values[side], f.of(run))
			}
		}
		p.Metrics = append(p.Metrics, metric(f.name, f.title, values))
	}
	traced := 0
	for i := range r.Requests {
		traced += r.Requests[i].InputLength
	}
	for _, pair := range rounds {
		for side, run := range pair {
			if run.Failed() == 0 && run.Uncounted == 0 {
				p.Scale = float64(run.PromptTokens) / float64(traced)
			}
			refused := run.Failures["status 429"] + run.Failures["status 503"] + run.Failures["status 529"]
			p.Refused[side] += refused
			p.Failed[side] += run.Failed() - refused
			p.Late = max(p.Late, run.Late)
		}
	}
	return p
}

// reusable returns the share of prompt tokens that an earlier prompt of the trace begins with. With
// spread, prompts that have only the first block in common share nothing.
func reusable(requests []trace.Request, spread bool) float64 {
	seen := map[uint64]int{} // most tokens of a block, by the block and all before it
	found, all := 0, 0
	for i := range requests {
		q := &requests[i]
		all += q.InputLength
		var chain uint64
		if spread && len(q.HashIDs) > 1 {
			chain = trace.Spread(uint64(q.HashIDs[1]) + 1)
		}
		shared := true
		for at, id := range q.HashIDs {
			chain = trace.Spread(chain ^ trace.Spread(uint64(id)))
			tokens := min(q.InputLength-at*trace.BlockTokens, trace.BlockTokens)
			if shared {
				found += min(tokens, seen[chain])
				shared = seen[chain] == trace.BlockTokens
			}
			seen[chain] = max(seen[chain], tokens)
		}
	}
	return float64(found) / float64(max(all, 1))
}

// metric compares the values of two sides, which are by round.
func metric(name, title string, values [2][]float64) Metric {
	m := Metric{Name: name, Title: title}
	if slices.ContainsFunc(values[0], math.IsNaN) || slices.ContainsFunc(values[1], math.IsNaN) {
		return m
	}
	m.Sides = &[2]compare.Interval{compare.IntervalOf(values[0]), compare.IntervalOf(values[1])}
	if !slices.Contains(values[0], 0) {
		ratio := compare.RatioInterval(values[1], values[0])
		m.Ratio = &ratio
	}
	return m
}

// LateTooMuch says whether the client itself was so late that the times are doubtful.
func (p *Report) LateTooMuch() bool { return p.Late > (50 * time.Millisecond).Seconds() }
