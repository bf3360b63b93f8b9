package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/router/policy"
)

// Trial compares contestants under equal kinds of traffic, loads and seeds.
type Trial struct {
	Traffics    []Traffic
	Loads       []float64 // shares of the rate that round robin holds
	Contestants []Contestant
	Seeds       int // at least 2, because one seed has no interval
	FirstSeed   uint64
	// CurveLoads are further loads, which are simulated for the curves only.
	CurveLoads []float64
	// Progress, if set, is called after each simulation. The calls come one at a time.
	Progress func(done, of int)
}

// Contestant is a mode with a policy's settings.
type Contestant struct {
	Name   string
	Mode   string
	Policy *policy.Policy // default policy.Default()
	// Change changes the traffic's fleet for this contestant; nil: no change.
	Change func(fleet *Config)
}

// Judgement is the result of a Trial.
type Judgement struct {
	Seeds     int       `json:"seeds"`
	FirstSeed uint64    `json:"first_seed"`
	Rates     []Rate    `json:"rates"`
	Rows      []*Row    `json:"rows"` // by traffic, load and contestant
	Summary   []Summary `json:"summary"`
	// Points are the rows of all loads, those of the curves too; absent without curves.
	Points []*Row `json:"points,omitempty"`
}

// Rate is the rate that round robin holds.
type Rate struct {
	Workload  string  `json:"workload"`
	PerSecond float64 `json:"requests_per_second"`
}

// Row holds the figures of one contestant under one traffic and load.
type Row struct {
	Workload string  `json:"workload"`
	Load     float64 `json:"load"`
	Mode     string  `json:"mode"`
	// Means are the means over the seeds, by the name of the figure. Figures without a value are
	// left out.
	Means map[string]float64 `json:"means"`
	// Against compares each judged figure with the best other contestant's.
	Against map[string]Difference `json:"against,omitempty"`

	results []*Result // by seed
}

// Figures of a Row. Times are in ms.
const (
	FigureTTFT        = "ttft_mean_ms"
	FigureTTFTP90     = "ttft_p90_ms"
	FigureE2E         = "e2e_mean_ms"
	FigurePerToken    = "per_token_ms"
	FigureGapP99      = "gap_p99_ms"
	FigureGapMean     = "gap_mean_ms"
	FigureHandedOver  = "handed_over"
	FigureWeighted    = "weighted_wait_ms"
	FigureHitRatio    = "hit_ratio"
	FigureRefused     = "refused"
	FigurePreemptions = "preemptions"
	FigureBusiest     = "busiest_to_mean"
	FigureErrorP50    = "ttft_error_p50_pct"
	FigureErrorP90    = "ttft_error_p90_pct"
	FigureUsualP90    = "usual_ttft_p90_ms"
	FigureSlowP90     = "slow_ttft_p90_ms"
	FigureAfterTTFT   = "recovered_ttft_mean_ms"
	FigureAfterE2E    = "recovered_e2e_mean_ms"
	FigureLoaded      = "loaded_gigabytes"
	FigurePulled      = "pulled_gigabytes"
)

// figures compute the figures of a simulation. ok is false if it has no value.
var figures = []struct {
	name string
	of   func(r *Result) (v float64, ok bool)
}{
	{FigureTTFT, func(r *Result) (float64, bool) { return r.TTFT.Mean, true }},
	{FigureTTFTP90, func(r *Result) (float64, bool) { return r.TTFT.P90, true }},
	{FigureE2E, func(r *Result) (float64, bool) { return r.E2E.Mean, true }},
	{FigurePerToken, func(r *Result) (float64, bool) { return r.PerToken.Mean, true }},
	{FigureGapP99, func(r *Result) (float64, bool) { return r.gaps().P99, r.Gaps != nil }},
	{FigureGapMean, func(r *Result) (float64, bool) { return r.gaps().Mean, r.Gaps != nil }},
	{FigureWeighted, func(r *Result) (float64, bool) { return r.weighted(), r.Gaps != nil }},
	{FigureHandedOver, func(r *Result) (float64, bool) {
		return float64(r.HandedOver) / float64(max(r.Answered, 1)), r.HandedOver > 0
	}},
	{FigureHitRatio, func(r *Result) (float64, bool) { return r.HitRatio, true }},
	{FigureRefused, func(r *Result) (float64, bool) { return float64(r.Refused), true }},
	{FigurePreemptions, func(r *Result) (float64, bool) { return float64(r.Preemptions), true }},
	{FigureBusiest, func(r *Result) (float64, bool) { return r.BusiestToMean, true }},
	{FigureLoaded, func(r *Result) (float64, bool) { return gigabytes(r.Loaded), r.Loaded > 0 }},
	{FigurePulled, func(r *Result) (float64, bool) { return gigabytes(r.Pulled), r.Pulled > 0 }},
	{FigureErrorP50, func(r *Result) (float64, bool) { return r.TTFTError.P50, r.TTFTError.Count > 0 }},
	{FigureErrorP90, func(r *Result) (float64, bool) { return r.TTFTError.P90, r.TTFTError.Count > 0 }},
	{FigureUsualP90, func(r *Result) (float64, bool) { return r.Phases.Before.TTFT.P90, r.Phases.Slow.TTFT.Count > 0 }},
	{FigureSlowP90, func(r *Result) (float64, bool) { return r.Phases.Slow.TTFT.P90, r.Phases.Slow.TTFT.Count > 0 }},
	{FigureAfterTTFT, func(r *Result) (float64, bool) { return r.Phases.After.TTFT.Mean, r.Phases.After.TTFT.Count > 0 }},
	{FigureAfterE2E, func(r *Result) (float64, bool) { return r.Phases.After.E2E.Mean, r.Phases.After.E2E.Count > 0 }},
}

// Judge simulates every contestant under every traffic, load and seed, on all CPUs. Equal trials
// give equal judgements.
func Judge(ctx context.Context, t Trial) (*Judgement, error) {
	if t.Seeds < 2 || len(t.Loads) == 0 || len(t.Traffics) == 0 || len(t.Contestants) == 0 {
		return nil, errors.New("a trial needs 2 seeds or more, and loads, traffic and contestants")
	}
	j := &Judgement{Seeds: t.Seeds, FirstSeed: t.FirstSeed, Rates: make([]Rate, len(t.Traffics))}
	err := inParallel(ctx, len(t.Traffics), func(i int) (err error) {
		j.Rates[i].Workload = t.Traffics[i].Name
		j.Rates[i].PerSecond, err = t.Traffics[i].Capacity()
		return err
	})
	if err != nil {
		return nil, err
	}
	points, err := t.simulate(ctx, j.Rates)
	if err != nil {
		return nil, err
	}
	if len(t.CurveLoads) > 0 {
		j.Points = points
	}
	for _, r := range points {
		if slices.Contains(t.Loads, r.Load) {
			j.Rows = append(j.Rows, r)
		}
	}
	j.compare(t.Contestants)
	return j, nil
}

// inParallel calls fn for 0 to n-1, on all CPUs.
func inParallel(ctx context.Context, n int, fn func(i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(i)
		})
	}
	return g.Wait()
}

// loads returns the loads of the table and of the curves in order.
func (t *Trial) loads() []float64 {
	all := slices.Concat(t.Loads, t.CurveLoads)
	slices.Sort(all)
	return slices.Compact(all)
}

// simulate returns the rows of all traffic, loads and contestants. The contestants of one load and
// seed share a workload.
func (t *Trial) simulate(ctx context.Context, rates []Rate) ([]*Row, error) {
	loads := t.loads()
	var rows []*Row
	for i := range t.Traffics {
		for _, load := range loads {
			for k := range t.Contestants {
				rows = append(rows, &Row{
					Workload: t.Traffics[i].Name, Load: load, Mode: t.Contestants[k].Name,
					results: make([]*Result, t.Seeds),
				})
			}
		}
	}
	var mu sync.Mutex // guards done, and the calls of Progress
	done := 0
	err := inParallel(ctx, len(t.Traffics)*len(loads)*t.Seeds, func(i int) error {
		group, seed := i/t.Seeds, i%t.Seeds
		of := group / len(loads)
		w, cfg, err := t.Traffics[of].At(t.FirstSeed+uint64(seed), rates[of].PerSecond*loads[group%len(loads)])
		for k := range t.Contestants {
			if err = errors.Join(err, ctx.Err()); err != nil {
				return err
			}
			cfg := cfg
			cfg.Mode, cfg.Policy = t.Contestants[k].Mode, t.Contestants[k].Policy
			if change := t.Contestants[k].Change; change != nil {
				change(&cfg)
			}
			row := rows[group*len(t.Contestants)+k]
			if row.results[seed], err = Run(w, cfg); err != nil {
				return fmt.Errorf("%s at load %g: %w", row.Workload, row.Load, err)
			}
			row.results[seed].singles = singles{} // too large to keep for all
			mu.Lock()
			done++
			if t.Progress != nil {
				t.Progress(done, len(rows)*t.Seeds)
			}
			mu.Unlock()
		}
		return nil
	})
	for _, r := range rows {
		r.average()
	}
	return rows, err
}

// values returns the figure's value for each seed that has one.
func (r *Row) values(of func(*Result) (float64, bool)) (all []float64) {
	for _, one := range r.results {
		if one == nil {
			continue
		}
		if v, ok := of(one); ok {
			all = append(all, v)
		}
	}
	return all
}

// average computes the means.
func (r *Row) average() {
	r.Means = map[string]float64{}
	for _, f := range figures {
		if v := r.values(f.of); len(v) > 0 {
			r.Means[f.name] = mean(v)
		}
	}
}
