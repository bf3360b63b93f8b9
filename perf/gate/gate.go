package gate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/perf/compare"
)

//go:embed thresholds.toml
var thresholdsTOML string

// Gate is one limit, and how it is measured.
type Gate struct {
	Name   string  `toml:"name" json:"name"`
	Limit  float64 `toml:"limit" json:"limit"`
	Reason string  `toml:"reason" json:"reason"`
}

// thresholds is the content of thresholds.toml.
type thresholds struct {
	SchedulerCalls []string `toml:"scheduler_calls"`
	Gates          []Gate   `toml:"gate"`
}

func readThresholds(text string) (t thresholds, err error) {
	if err := compare.Decode("thresholds.toml", text, &t); err != nil {
		return t, err
	}
	for _, g := range t.Gates {
		if gauges[g.Name] == nil || g.Limit <= 0 || g.Reason == "" {
			return t, fmt.Errorf("thresholds.toml: %q: not a gate, or without limit or reason", g.Name)
		}
	}
	return t, nil
}

// Config says which gates are checked.
type Config struct {
	Root     string    // root of the repository
	Only     []string  // names of gates; empty: all
	Strict   bool      // a gate that cannot be measured on this machine fails
	Progress io.Writer // gets a line for each measurement
}

// Outcome is the result of a gate.
type Outcome struct {
	Gate
	Values []float64 `json:"values"` // one for each measurement
	Detail string    `json:"detail,omitempty"`
	// Unmeasured is the reason if there are no values.
	Unmeasured string `json:"unmeasured,omitempty"`
}

// Passed reports whether any measurement was within the limit.
func (o *Outcome) Passed() bool { return len(o.Values) > 0 && slices.Min(o.Values) <= o.Limit }

// Report holds the results of all gates.
type Report struct {
	Outcomes []Outcome `json:"outcomes"`
	Strict   bool      `json:"strict"`
}

// errUnmeasured means that this machine cannot measure a gate.
var errUnmeasured = errors.New("not measured")

// Attempts before a gate fails. CPU time ratios are noisy on a busy machine.
const (
	attempts      = 3
	ratioAttempts = 6
)

// gauge measures one figure. detail helps to find out why the figure grew.
type gauge func(ctx context.Context, s *site) (value float64, detail string, err error)

var gauges = map[string]gauge{
	"allocations_per_request":      shortRequests.allocations,
	"allocations_per_long_request": longRequests.allocations,
	"allocations_per_unsampled":    unsampledRequests.allocations,
	"allocations_with_key":         keyedRequests.allocations,
	"calls_per_unsampled":          unsampledRequests.calls(useful),
	"allocations_per_token":        tokens.allocations,
	"calls_per_request":            shortRequests.calls(useful),
	"empty_calls_per_request":      shortRequests.calls(empty),
	"calls_per_token":              tokens.calls(useful),
	"empty_calls_per_token":        tokens.calls(empty),
	"waits_per_token":              tokens.calls(waits),
	"index_bytes_per_block":        indexBytesPerBlock,
	"event_index_bytes_per_block":  eventIndexBytesPerBlock,
	"request_cpu_to_haproxy":       cpuRatio("chat-2k", "haproxy"),
	"token_cpu_to_haproxy":         cpuRatio("tokens", "haproxy"),
	"request_cpu_to_bare_go":       cpuRatio("chat-2k", "bare Go server"),
	"token_cpu_in_step":            cpuInStep(ours, "haproxy"),
	"tls_token_cpu_in_step":        cpuInStep(oursTLS, ours),
	"keys_cpu_to_none":             keysCPU,
	"allocations_per_pick":         allocationsPerPick,
	"pick_cpu_to_score":            pickCPU(8),
	"pick_cpu_512_nodes_to_score":  pickCPU(512),

	"missed_reuse_mixed":        missedReuse("mixed", inScore),
	"missed_reuse_hot":          missedReuse("hot", inScore),
	"missed_reuse_slow":         missedReuse("slow", inScore),
	"ttft_to_round_robin_mixed": ttftToRoundRobin("mixed", inScore),
	"ttft_to_round_robin_hot":   ttftToRoundRobin("hot", inScore),

	"missed_reuse_mixed_unlimited":        missedReuse("mixed_unlimited", inScore),
	"missed_reuse_hot_unlimited":          missedReuse("hot_unlimited", inScore),
	"ttft_to_round_robin_mixed_unlimited": ttftToRoundRobin("mixed_unlimited", inScore),
	"ttft_to_round_robin_hot_unlimited":   ttftToRoundRobin("hot_unlimited", inScore),

	"missed_reuse_mixed_default":        missedReuse("mixed", inDefault),
	"missed_reuse_hot_default":          missedReuse("hot", inDefault),
	"ttft_to_round_robin_mixed_default": ttftToRoundRobin("mixed", inDefault),
	"ttft_to_round_robin_hot_default":   ttftToRoundRobin("hot", inDefault),

	"cold_burst_busiest":             coldBurst("score", unlimited, busiest),
	"cold_burst_busiest_cost":        coldBurst("cost", 256, busiest),
	"cold_burst_busiest_256_slots":   coldBurst("score", 256, busiest),
	"cold_burst_ttft_to_round_robin": coldBurst("score", unlimited, meanTTFT),

	"cold_burst_busiest_default":             coldBurst(simulatedModes[inDefault], unlimited, busiest),
	"cold_burst_ttft_to_round_robin_default": coldBurst(simulatedModes[inDefault], unlimited, meanTTFT),
}

// site holds what the gates share: a running router and the programs that it is compared with.
type site struct {
	*compare.Site
	thresholds
	interrupted <-chan struct{} // closed when the gates should end
	running     map[string]*compare.Running
	inStep      map[string]float64           // least CPU time per token so far, in µs
	reports     map[string][]*cluster.Report // reports of simulated fleets
}

// Run measures all gates.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	t, err := readThresholds(thresholdsTOML)
	if err != nil {
		return nil, err
	}
	for _, name := range cfg.Only {
		if gauges[name] == nil {
			all := strings.Join(slices.Sorted(maps.Keys(gauges)), ", ")
			return nil, fmt.Errorf("--only %s: there is no such gate; there are %s", name, all)
		}
	}
	router := filepath.Join(cfg.Root, "bin", "cgn-router")
	if _, err := os.Stat(router); err != nil {
		return nil, fmt.Errorf("--root %s: there is no %s: name the repository, and run make build in it", cfg.Root,
			router)
	}
	s := &site{
		thresholds: t, interrupted: ctx.Done(), running: map[string]*compare.Running{}, inStep: map[string]float64{},
	}
	if s.Site, err = compare.NewSite(cfg.Root); err != nil {
		return nil, err
	}
	defer s.Close()
	defer s.stop()
	report := &Report{Strict: cfg.Strict}
	for _, g := range t.Gates {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, g.Name) {
			continue
		}
		o, err := s.check(ctx, g, cfg.Progress)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.Name, err)
		}
		report.Outcomes = append(report.Outcomes, o)
	}
	return report, nil
}

// errInterrupted means that a measurement was interrupted, so that its value is not used.
var errInterrupted = errors.New("interrupted")

// check measures one gate until it passes, or until its attempts are used up.
func (s *site) check(ctx context.Context, g Gate, progress io.Writer) (Outcome, error) {
	o := Outcome{Gate: g}
	tries := attempts
	if strings.Contains(g.Name, "_cpu_") {
		tries = ratioAttempts
	}
	for range tries {
		begun := time.Now()
		value, detail, err := gauges[g.Name](ctx, s)
		if ctx.Err() != nil {
			return o, errInterrupted
		}
		if errors.Is(err, errUnmeasured) {
			o.Unmeasured = err.Error()
			fmt.Fprintf(progress, "%s: %s\n", g.Name, o.Unmeasured)
			return o, nil
		}
		if err != nil {
			return o, err
		}
		o.Values, o.Detail = append(o.Values, value), detail
		fmt.Fprintf(progress, "%s: %.3f, limit %.3f (%.1f s) %s\n", g.Name, value, g.Limit, time.Since(begun).Seconds(),
			detail)
		if o.Passed() {
			break
		}
	}
	return o, nil
}

// start returns a running contestant.
func (s *site) start(ctx context.Context, name string) (*compare.Running, error) {
	if r := s.running[name]; r != nil {
		return r, nil
	}
	c := compare.ContestantNamed(name)
	if missing := s.Missing(c); missing != "" {
		return nil, fmt.Errorf("%w: %s is %s", errUnmeasured, name, missing)
	}
	r, err := s.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	s.running[name] = r
	return r, nil
}

func (s *site) stop() {
	for _, r := range s.running {
		r.Stop()
	}
}

// String formats the report as a table.
func (r *Report) String() string {
	var b strings.Builder
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		verdict := "ok  "
		switch {
		case o.Unmeasured != "" && !r.Strict:
			verdict = "SKIP"
		case !o.Passed():
			verdict = "FAIL"
		}
		fmt.Fprintf(&b, "%s %-35s %s, limit %g", verdict, o.Name, o.measured(), o.Limit)
		if verdict == "FAIL" {
			fmt.Fprintf(&b, "\n     %s\n     %s", o.Reason, o.Detail)
		}
		b.WriteString("\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

func (o *Outcome) measured() string {
	if o.Unmeasured != "" {
		return o.Unmeasured
	}
	var v []string
	for _, x := range o.Values {
		v = append(v, fmt.Sprintf("%.3f", x))
	}
	return strings.Join(v, ", then ")
}

// Err returns an error that names the failed gates.
func (r *Report) Err() error {
	var failed []string
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Unmeasured != "" && !r.Strict {
			continue
		}
		if !o.Passed() {
			failed = append(failed, o.Name)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("over the limit of perf/gate/thresholds.toml: %s", strings.Join(failed, ", "))
}
