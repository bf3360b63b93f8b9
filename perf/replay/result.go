package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Times are the mean and percentiles over the completely answered requests, in seconds.
type Times struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Node holds one node's figures, as a client sees them.
type Node struct {
	ID       string  `json:"id"` // x-cgn-node; empty if the endpoint does not send it
	Requests int     `json:"requests"`
	Share    float64 `json:"share"` // share of the completely answered requests
	// MaxInFlight is the largest number of the node's requests at one time. A request counts from
	// its sending until the end of its answer.
	MaxInFlight int   `json:"max_in_flight"`
	TTFT        Times `json:"ttft_seconds"` // of the completely answered requests
}

// Result is the result of a replay.
type Result struct {
	Requests int            `json:"requests"`
	Failures map[string]int `json:"failures"` // by reason
	// Sample is the beginning of one failed answer, or the error of its connection.
	Sample string  `json:"sample,omitempty"`
	Wall   float64 `json:"wall_seconds"`
	// Late is the replay's own largest delay in sending a request. A large value means that this
	// machine was too slow for the speed.
	Late float64 `json:"late_seconds"`
	// LateP99 is the delay that 1 % of the requests exceeded.
	LateP99 float64 `json:"late_p99_seconds"`
	// InFlight is the mean number of requests in flight in each third of the time in which
	// requests were due. If the last third has many more than the middle one, a queue grew.
	InFlight [3]float64 `json:"in_flight_thirds"`
	// TTFT is the time to the first token, and E2E the time to the end of the answer. The two
	// times count from the due time.
	TTFT Times `json:"ttft_seconds"`
	E2E  Times `json:"e2e_seconds"`
	// ITL is the time between two tokens: for each answer of at least two tokens, the mean.
	ITL Times `json:"itl_seconds"`
	// HitRatio is the share of the prompt tokens that came from a prefix cache.
	HitRatio float64 `json:"hit_ratio"`
	// Token counts are the engines' own. Uncounted is the number of answers without a count of
	// cached tokens. Uncounted answers are not in PromptTokens and CachedTokens.
	PromptTokens int64  `json:"prompt_tokens"`
	CachedTokens int64  `json:"cached_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	Uncounted    int    `json:"uncounted"`
	Nodes        []Node `json:"nodes"` // by ID
}

// Failed returns the number of requests without a complete answer.
func (r *Result) Failed() int {
	n := 0
	for _, count := range r.Failures {
		n += count
	}
	return n
}

func summarise(samples []sample, wall time.Duration) *Result {
	r := &Result{Requests: len(samples), Failures: map[string]int{}, Wall: wall.Seconds(), Nodes: []Node{},
		InFlight: inFlight(samples)}
	var ttft, e2e, itl, late []time.Duration
	byNode := map[string][]sample{}
	for _, s := range samples {
		late = append(late, max(s.sent-s.due, 0))
		if s.sent > 0 || s.failure == "" {
			byNode[s.node] = append(byNode[s.node], s)
		}
		if s.failure != "" {
			r.Failures[s.failure]++
			r.Sample = cmp.Or(r.Sample, s.answer)
			continue
		}
		ttft, e2e = append(ttft, s.first-s.due), append(e2e, s.end-s.due)
		if gap := s.itl(); gap > 0 {
			itl = append(itl, gap)
		}
		r.addTokens(&s)
	}
	r.TTFT, r.E2E, r.ITL = percentiles(ttft), percentiles(e2e), percentiles(itl)
	behind := percentiles(late)
	r.Late, r.LateP99 = behind.Max, behind.P99
	r.HitRatio = float64(r.CachedTokens) / float64(max(r.PromptTokens, 1))
	r.addNodes(byNode, len(ttft))
	return r
}

// itl returns the mean time between two tokens of an answer, or 0 for an answer of fewer than two.
// The engine's own count of tokens is used, if there is one, because an event may have several
// tokens.
func (s *sample) itl() time.Duration {
	tokens := cmp.Or(s.out, s.tokens)
	if tokens < 2 {
		return 0
	}
	return (s.last - s.first) / time.Duration(tokens-1)
}

func (r *Result) addTokens(s *sample) {
	r.OutputTokens += s.out
	if !s.counted {
		r.Uncounted++
		return
	}
	r.PromptTokens += s.prompt
	r.CachedTokens += s.cached
}

func (r *Result) addNodes(byNode map[string][]sample, answered int) {
	for id, samples := range byNode {
		n := Node{ID: id, MaxInFlight: maxInFlight(samples)}
		var ttft []time.Duration
		for _, s := range samples {
			if s.failure == "" {
				n.Requests++
				ttft = append(ttft, s.first-s.due)
			}
		}
		n.TTFT = percentiles(ttft)
		if answered > 0 {
			n.Share = float64(n.Requests) / float64(answered)
		}
		r.Nodes = append(r.Nodes, n)
	}
	slices.SortFunc(r.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
}

// maxInFlight returns the largest number of samples that overlap at one moment.
func maxInFlight(samples []sample) int {
	type change struct {
		at    time.Duration
		delta int
	}
	var changes []change
	for _, s := range samples {
		changes = append(changes, change{s.sent, 1}, change{s.end, -1})
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta))
	})
	most, now := 0, 0
	for _, c := range changes {
		now += c.delta
		most = max(most, now)
	}
	return most
}

// inFlight returns the mean number of samples in flight in each third of the time until the last
// was due.
func inFlight(samples []sample) (mean [3]float64) {
	var end time.Duration
	for i := range samples {
		end = max(end, samples[i].due)
	}
	third := end / time.Duration(len(mean))
	if third == 0 {
		return mean
	}
	for i := range mean {
		from, to := time.Duration(i)*third, time.Duration(i+1)*third
		for _, s := range samples {
			mean[i] += max(min(s.end, to)-max(s.sent, from), 0).Seconds() / third.Seconds()
		}
	}
	return mean
}

func percentiles(d []time.Duration) Times {
	if len(d) == 0 {
		return Times{}
	}
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	at := func(p float64) float64 { return d[min(int(p*float64(len(d))), len(d)-1)].Seconds() }
	return Times{Mean: sum.Seconds() / float64(len(d)), P50: at(0.50), P90: at(0.90), P99: at(0.99), Max: at(1)}
}

// MarkdownHeader returns the head of a table of MarkdownRow.
func MarkdownHeader() string {
	return "| | turns | failed | hit ratio | TTFT p50 ms | p90 | p99 | E2E p50 ms | busiest node | most in flight on " +
		"a node |\n" +
		"|---|---|---|---|---|---|---|---|---|---|\n"
}

// MarkdownRow formats the result as one row of a table.
func (r *Result) MarkdownRow(name string) string {
	share, most := 0.0, 0
	for _, n := range r.Nodes {
		share, most = max(share, n.Share), max(most, n.MaxInFlight)
	}
	return fmt.Sprintf("| %s | %d | %d | %.3f | %.1f | %.1f | %.1f | %.1f | %.0f %% | %d |\n",
		name, r.Requests, r.Failed(), r.HitRatio, 1e3*r.TTFT.P50, 1e3*r.TTFT.P90, 1e3*r.TTFT.P99, 1e3*r.E2E.P50,
		100*share, most)
}

// Details lists the failures, the nodes, and reasons to doubt the figures, one line each.
func (r *Result) Details() string {
	var b strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "failed: %s: %d\n", reason, r.Failures[reason])
	}
	if r.Sample != "" {
		fmt.Fprintf(&b, "the first failed answer: %s\n", r.Sample)
	}
	for _, n := range r.Nodes {
		fmt.Fprintf(&b, "node %q: %d requests (%.1f %%), at most %d in flight\n", n.ID, n.Requests, 100*n.Share,
			n.MaxInFlight)
	}
	if r.Uncounted > 0 {
		fmt.Fprintf(&b, "without a cached-token count: %d answers\n", r.Uncounted)
	}
	late := time.Duration(r.Late * float64(time.Second)).Round(time.Millisecond)
	fmt.Fprintf(&b, "requests were sent at most %s after they were due\n", late)
	return b.String()
}
