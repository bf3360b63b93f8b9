package disturb

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/markdown"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/perf/replay"
)

// Report holds the results of all runs.
type Report struct {
	Config  Config              `json:"-"`
	Results map[string][]Result `json:"results"` // by mode, in the order of rounds
	Took    time.Duration       `json:"took_ns"`
}

// Result is the result of one run.
type Result struct {
	Mode   string        `json:"mode"`
	Replay replay.Result `json:"replay"` // output of bench replay
	// The router's counts: requests retried on another node, nodes that became suspect, breakers
	// that opened.
	Retries   float64 `json:"retries"`
	Suspected float64 `json:"suspected"`
	Opens     float64 `json:"breaker_opens"`
}

// node returns one node's figures, which may be zero.
func (r *Result) node(i int) replay.Node {
	for _, n := range r.Replay.Nodes {
		if n.ID == nodeID(i) {
			return n
		}
	}
	return replay.Node{}
}

// p90 returns a node's TTFT in ms.
func (r *Result) p90(node int) float64 {
	n := r.node(node)
	if n.Share == 0 {
		return math.NaN()
	}
	return 1e3 * n.TTFT.P90
}

func (r *Result) failed() float64 { return float64(r.Replay.Failed()) }

func (r *Result) line() string {
	t := r.Replay.TTFT
	return fmt.Sprintf("%s: TTFT p50 %.0f, p90 %.0f, p99 %.0f ms; %.0f failed, %.0f retried, %.0f times suspect; "+
		"hogged %.1f %%, lossy %.1f %% of the requests",
		r.Mode, 1e3*t.P50, 1e3*t.P90, 1e3*t.P99, r.failed(), r.Retries, r.Suspected, 100*r.node(hogged).Share,
		100*r.node(lossy).Share)
}

// columns of the table.
var columns = []struct {
	title string
	value func(r *Result) float64
}{
	{"TTFT p50 ms", func(r *Result) float64 { return 1e3 * r.Replay.TTFT.P50 }},
	{"p90", func(r *Result) float64 { return 1e3 * r.Replay.TTFT.P90 }},
	{"p99", func(r *Result) float64 { return 1e3 * r.Replay.TTFT.P99 }},
	{"E2E p99 ms", func(r *Result) float64 { return 1e3 * r.Replay.E2E.P99 }},
	{"to the hogged node %", func(r *Result) float64 { return 100 * r.node(hogged).Share }},
	{"TTFT p90 there", func(r *Result) float64 { return r.p90(hogged) }},
	{"to the lossy node %", func(r *Result) float64 { return 100 * r.node(lossy).Share }},
	{"TTFT p90 there", func(r *Result) float64 { return r.p90(lossy) }},
	{"hit ratio", func(r *Result) float64 { return r.Replay.HitRatio }},
	{"failed", (*Result).failed},
	{"retried", func(r *Result) float64 { return r.Retries }},
	{"nodes suspect", func(r *Result) float64 { return r.Suspected }},
}

const p99Column = 2

func (r *Report) values(mode string, column int) []float64 {
	all := r.Results[mode]
	v := make([]float64, len(all))
	for i := range all {
		v[i] = columns[column].value(&all[i])
	}
	return v
}

// Markdown formats the report. command is the command that made it.
func (r *Report) Markdown(command string) string {
	var b strings.Builder
	c := &r.Config
	source := "the project's generator"
	if c.Trace != "" {
		source = "the public conversation trace"
	}
	fmt.Fprintf(&b, "Measured %s, commit %s, %s, %s, in %.0f s.\n\n    %s\n\n", time.Now().UTC().Format("2006-01-02"),
		buildinfo.Commit(),
		process.Machine(runtime.NumCPU()), runtime.Version(), r.Took.Seconds(), command)
	fmt.Fprintf(&b, "Each of the %d nodes has %g of a CPU. The first node shares its CPU with %d hogs, processes that "+
		"never sleep. The second node loses %g %% of the packets each way. A run replays %d requests of %s at %gx its "+
		"speed, with prompts of at most %d tokens and answers of at most %d. An engine computes %d prompt tokens/s, "+
		"takes %v and %v of CPU a step, and has %d slots. Figures are medians (smallest–largest) of %d rounds, and "+
		"all modes take turns.\n\n",
		c.Nodes, nodeCPU, c.Hogs, 100*c.Loss, c.Requests, source, c.Speed, mostInput, mostOutput, prefillRate,
		decodeStep, stepCPU, maxConcurrent, c.Rounds)
	for _, name := range c.Modes {
		fmt.Fprintf(&b, "- %s: %s\n", name, c.mode(name).What)
	}
	b.WriteString("\n| mode |")
	for _, col := range columns {
		b.WriteString(" " + col.title + " |")
	}
	b.WriteString(" p99 ÷ off |\n|---|" + strings.Repeat("---|", len(columns)+1) + "\n")
	for _, name := range c.Modes {
		b.WriteString("| " + name + " |")
		for i := range columns {
			b.WriteString(" " + compare.SpreadOf(r.values(name, i)).String() + " |")
		}
		b.WriteString(" " + compare.Ratios(r.values(name, p99Column), r.values("off", p99Column)).String() + " |\n")
	}
	return markdown.Wrap(b.String())
}

// metric returns the sum of a router metric's samples.
func metric(text []byte, name string) (total float64) {
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err == nil {
				total += v
			}
		}
	}
	return total
}
