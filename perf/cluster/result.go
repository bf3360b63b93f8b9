package cluster

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
)

// Result is the result of one simulation. Times are in simulated milliseconds.
type Result struct {
	Mode         string  `json:"mode"`
	Speed        float64 `json:"speed"`
	Requests     int     `json:"requests"`
	Answered     int     `json:"answered"`
	Refused      int     `json:"refused"`
	PromptTokens int64   `json:"prompt_tokens"` // tokens of answered requests
	CachedTokens int64   `json:"cached_tokens"`
	Believed     int64   `json:"believed_tokens"` // tokens that the router expected to be cached
	TTFT         Times   `json:"ttft_ms"`
	E2E          Times   `json:"e2e_ms"`
	// PerToken is the time per token of an answer after its first token.
	PerToken Times `json:"per_token_ms"`
	// Gaps are the times between two tokens of an answer, with Config.Gaps.
	Gaps *Times `json:"gaps_ms,omitempty"`
	// HandedOver is the number of requests whose prompt another node computed.
	HandedOver int `json:"handed_over,omitempty"`
	// TTFTError is the difference between the expected and the real time to the first token, in
	// percent of the real time. TTFTError is 0 in modes that expect no time.
	TTFTError Times `json:"ttft_error_pct"`
	// Phases is empty if no node is slower for a time.
	Phases   Phases  `json:"phases"`
	HitRatio float64 `json:"hit_ratio"` // share of cached tokens in prompt tokens
	// Utilisation is the share of the nodes' time that was used for prefill, from the first arrival
	// to the last.
	Utilisation float64 `json:"prefill_utilisation"`
	// BusiestShare is the busiest node's share of the requests.
	BusiestShare float64 `json:"busiest_share"`
	// BusiestToMean is the busiest node's number of requests as a multiple of the nodes' mean.
	BusiestToMean float64 `json:"busiest_to_mean"`
	MostInFlight  int     `json:"most_in_flight"` // on one node
	// Loaded are the tokens that engines loaded from the caches of hosts, and Pulled those of them
	// that came from another host.
	Loaded int64 `json:"loaded_tokens,omitempty"`
	Pulled int64 `json:"pulled_tokens,omitempty"`
	// Preemptions counts the requests that lost their KV blocks to others and were computed again.
	Preemptions int `json:"preemptions"`

	prefill time.Duration // that the nodes used until the last arrival
	perNode []int         // requests by node
	singles singles
}

// Phases has the requests by their arrival: before any node was slower, while one was, and after
// all were.
type Phases struct {
	Before Phase `json:"before"`
	Slow   Phase `json:"slow"`
	After  Phase `json:"after"`
}

// Phase has the times of the requests of one phase.
type Phase struct {
	TTFT Times `json:"ttft_ms"`
	E2E  Times `json:"e2e_ms"`
}

// Times are the mean, and percentiles by nearest rank, of a number of values.
type Times struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
}

// singles are the figures of single requests, from which those of the Result are made.
type singles struct {
	all, before, slow, after spans
	perToken, ttftErrors     []float64
	gaps                     []float64
	underway                 []int // requests that are being answered, after each arrival
}

// spans are times of single requests, in ms.
type spans struct{ ttft, e2e []float64 }

func (s *spans) add(first, all time.Duration) {
	s.ttft, s.e2e = append(s.ttft, ms(first)), append(s.e2e, ms(all))
}

func (s *spans) phase() Phase { return Phase{times(s.ttft), times(s.e2e)} }

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func newResult(c Config) *Result {
	return &Result{Mode: c.Mode, Speed: c.Speed, perNode: make([]int, c.Nodes)}
}

// sent counts a request that goes to a node, which then has inFlight requests.
func (r *Result) sent(node int, f *flight, inFlight int) {
	r.perNode[node]++
	r.Believed += int64(f.rehearsal.Matched() * prefix.BlockTokens)
	r.MostInFlight = max(r.MostInFlight, inFlight)
}

func (r *Result) answered(s *simulation, f *flight) {
	now := s.now
	r.Answered++
	if f.number < s.cfg.Skip {
		return
	}
	r.PromptTokens += int64(f.PromptTokens)
	r.CachedTokens += int64(f.cached())
	if f.handed != nil {
		r.HandedOver++
	}
	first, all := f.FirstToken()-f.at, now-f.at
	of := &r.singles
	of.all.add(first, all)
	switch slow, before, after := s.cfg.whileSlow(f.at); {
	case slow:
		of.slow.add(first, all)
	case before:
		of.before.add(first, all)
	case after:
		of.after.add(first, all)
	}
	if f.OutputTokens > 1 {
		of.perToken = append(of.perToken, ms(now-f.FirstToken())/float64(f.OutputTokens-1))
	}
	if f.expected > 0 {
		of.ttftErrors = append(of.ttftErrors, 100*math.Abs(float64(f.expected-first))/float64(first))
	}
}

// gaps returns the times between two tokens of an answer, or zero.
func (r *Result) gaps() Times {
	if r.Gaps == nil {
		return Times{}
	}
	return *r.Gaps
}

// weighted returns the mean time of an answer in ms, with the time to its first token by the weight
// that it has in the default policy.
func (r *Result) weighted() float64 {
	return policy.Default().Predicted.First*r.TTFT.Mean + r.E2E.Mean - r.TTFT.Mean
}

func (r *Result) finish(s *simulation) {
	r.Requests = len(s.workload.requests)
	for _, h := range s.hosts {
		r.Loaded += int64(h.loaded) * trace.BlockTokens
		r.Pulled += int64(h.pulled) * trace.BlockTokens
	}
	r.HitRatio = float64(r.CachedTokens) / float64(max(r.PromptTokens, 1))
	of := &r.singles
	r.TTFT, r.E2E = times(of.all.ttft), times(of.all.e2e)
	r.PerToken, r.TTFTError = times(of.perToken), times(of.ttftErrors)
	if s.cfg.Gaps {
		gaps := times(of.gaps)
		r.Gaps = &gaps
	}
	r.Phases = Phases{of.before.phase(), of.slow.phase(), of.after.phase()}
	for i := range s.nodes {
		r.Preemptions += s.nodes[i].model.Usage().Preemptions
	}
	r.BusiestShare = float64(slices.Max(r.perNode)) / float64(max(r.Answered, 1))
	r.BusiestToMean = r.BusiestShare * float64(len(r.perNode))
	if s.last > 0 {
		r.Utilisation = r.prefill.Seconds() / s.last.Seconds() / float64(len(r.perNode))
	}
}

func times(all []float64) Times {
	if len(all) == 0 {
		return Times{}
	}
	slices.Sort(all)
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	rank := func(p float64) float64 { return all[max(int(math.Ceil(p*float64(len(all))))-1, 0)] }
	return Times{len(all), sum / float64(len(all)), rank(.5), rank(.9), rank(.99)}
}

// MarkdownHeader returns the head of a table of MarkdownRow.
func MarkdownHeader() string {
	columns := []string{"mode", "hit ratio", "TTFT p50 ms", "p90", "p99", "E2E p50 ms", "p90", "p99", "prefill busy",
		"busiest node", "refused"}
	return "| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat("---|", len(columns)) + "\n"
}

// MarkdownRow formats the result as a row of a table.
func (r *Result) MarkdownRow() string {
	return fmt.Sprintf("| %s | %.3f | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f %% | %.1f %% | %d |\n", r.Mode,
		r.HitRatio,
		r.TTFT.P50, r.TTFT.P90, r.TTFT.P99, r.E2E.P50, r.E2E.P90, r.E2E.P99, 100*r.Utilisation, 100*r.BusiestShare,
		r.Refused)
}
