// Package flood measures what good requests suffer beside a flood of requests with wrong API keys.
//
// One router runs from the beginning to the end. Rounds without and with the flood alternate, so
// that a machine that becomes slower does so for both. The clients of the flood, the clients with a
// good key and the engines share this process, and all share the machine's cores with the router.
package flood

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/load"
	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/router/keys"
)

// Config of Run.
type Config struct {
	Root          string  // the repository
	Good, Refused float64 // requests per second, in Poisson processes
	Rounds        int     // without, and as many with the flood
	Window        time.Duration
	NewEvery      int       // distance between two requests of the flood over new connections
	Progress      io.Writer // gets a line for each round
}

// Round is one window.
type Round struct {
	P50     float64 `json:"p50_ms"` // of good requests, from when they were due
	P99     float64 `json:"p99_ms"`
	Refused float64 `json:"refused_per_second"`
	CPU     float64 `json:"router_cpu"`  // in CPUs
	OwnCPU  float64 `json:"harness_cpu"` // of clients and engines, in CPUs
	RSS     float64 `json:"router_mib"`  // resident, at the end of the window
	// Series is resident memory from the beginning to the end of the window, in MiB.
	Series []float64 `json:"router_mib_series"`
}

// Report is the result of Run.
type Report struct {
	Machine string  `json:"machine"`
	Good    float64 `json:"good_per_second"`
	Refused float64 `json:"refused_per_second_due"`
	Seconds float64 `json:"window_seconds"`
	Every   float64 `json:"series_seconds"` // between two values of Series
	Alone   []Round `json:"alone"`
	Flooded []Round `json:"flooded"`
	// P50 and P99 are the ratios of flooded rounds to the rounds before them.
	P50 compare.Interval `json:"p50_ratio"`
	P99 compare.Interval `json:"p99_ratio"`
	// Live is the router's heap after a collection of garbage, after the first and the last flood.
	// Nothing else forces a collection, so resident memory may grow to the collector's target.
	Live [2]float64 `json:"live_mib"`
}

// samples is the number of steps of a Series.
const samples = 12

// First and Last return the mean memory in the first and last sixth of a window, in MiB.
func (r *Round) First() float64 { return mean(r.Series[:min(len(r.Series), samples/6+1)]) }
func (r *Round) Last() float64  { return mean(r.Series[max(len(r.Series)-samples/6-1, 0):]) }

func mean(all []float64) (sum float64) {
	for _, v := range all {
		sum += v / float64(len(all))
	}
	return sum
}

// floodClients bounds the connections of the flood.
const floodClients = 256

// Run measures all rounds. An answer with a wrong status is an error.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	site, err := compare.NewSite(cfg.Root)
	if err != nil {
		return nil, err
	}
	defer site.Close()
	router := compare.ContestantNamed("ours, with keys")
	if why := site.Missing(router); why != "" {
		return nil, fmt.Errorf("the router is %s", why)
	}
	on, err := site.Start(ctx, router)
	if err != nil {
		return nil, err
	}
	defer on.Stop()
	b := &bench{Config: cfg, on: on, stop: ctx.Done(), wrong: wrongKeys(site.Keys().Revoked), seed: 1}
	r := &Report{Machine: process.Machine(runtime.NumCPU()), Good: cfg.Good, Refused: cfg.Refused,
		Seconds: cfg.Window.Seconds(), Every: cfg.Window.Seconds() / samples}
	for n := range cfg.Rounds {
		for _, flooded := range []bool{false, true} {
			round, err := b.round(flooded)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				return nil, err
			}
			if flooded && (n == 0 || n == cfg.Rounds-1) {
				live, err := on.Live()
				if err != nil {
					return nil, err
				}
				r.Live[min(n, 1)] = live / (1 << 20)
			}
			into, name := &r.Alone, "alone"
			if flooded {
				into, name = &r.Flooded, "flooded"
			}
			*into = append(*into, round)
			fmt.Fprintf(cfg.Progress, "round %d of %d, %s: p50 %.2f ms, p99 %.2f ms, %.0f refused/s, router %.2f CPUs, "+
				"%.1f MiB, then %.1f; harness %.2f CPUs\n", n+1, cfg.Rounds, name, round.P50, round.P99, round.Refused,
				round.CPU, round.First(), round.Last(), round.OwnCPU)
		}
	}
	r.P50 = ratio(r.Flooded, r.Alone, func(r Round) float64 { return r.P50 })
	r.P99 = ratio(r.Flooded, r.Alone, func(r Round) float64 { return r.P99 })
	return r, nil
}

// ratio returns the interval of a figure's ratios.
func ratio(of, to []Round, figure func(Round) float64) compare.Interval {
	var a, b []float64
	for i := range of {
		a, b = append(a, figure(of[i])), append(b, figure(to[i]))
	}
	return compare.RatioInterval(a, b)
}

// bench is the running router and the next requests.
type bench struct {
	Config
	on    *compare.Running
	stop  <-chan struct{}
	wrong func(n uint64) string
	seed  uint64 // of the next round
}

// warmup is the time before a window, in which connections are opened.
const warmup = 500 * time.Millisecond

// round measures one window.
func (b *bench) round(flooded bool) (r Round, err error) {
	var from, to process.Usage
	var errFrom, errTo error
	window := load.Window{Warmup: warmup, Measure: b.Window, Stop: b.stop}
	good := window
	var watching sync.WaitGroup
	ended := make(chan struct{})
	good.Begin = func() {
		from, errFrom = b.on.Usage()
		watching.Go(func() { r.Series = b.watch(ended) })
	}
	good.End = func() { to, errTo = b.on.Usage() }
	b.seed++
	chat := load.ChatConfig{Model: instant.Model, PromptBytes: 2 << 10, Shared: 0.5, Tokens: 16, Salt: b.seed}
	var refused, answered *load.Result
	var all sync.WaitGroup
	if flooded {
		bad := load.Target{Address: b.on.Addr(), KeyOf: b.wrong, Status: 401, NewEvery: uint64(b.NewEvery)}
		all.Go(func() {
			refused = load.Open{Target: bad, Bodies: load.NewChat(chat), Arrivals: load.Poisson(b.Refused, b.seed),
				MaxClients: floodClients, Window: window}.Run()
		})
	}
	answered = load.Open{Target: b.on.Target(), Bodies: load.NewChat(chat),
		Arrivals: load.Poisson(b.Good, b.seed+1<<32), Window: good}.Run()
	all.Wait()
	close(ended)
	watching.Wait()
	for _, result := range []*load.Result{answered, refused} {
		if result != nil && result.Failed() > 0 {
			return r, fmt.Errorf("%d answers are wrong: %v; the first: %s", result.Failed(), result.Failures,
				result.Sample)
		}
	}
	if errFrom != nil || errTo != nil {
		return r, fmt.Errorf("the router's usage: %w, %w", errFrom, errTo)
	}
	r = Round{P50: answered.Latency.P50 * 1e3, P99: answered.Latency.P99 * 1e3, RSS: float64(to.RSS) / (1 << 20),
		Series: append(r.Series, float64(to.RSS)/(1<<20)),
		CPU:    to.Sub(from).CPU.Seconds() / answered.Seconds, OwnCPU: answered.OwnCPUSeconds / answered.Seconds}
	if refused != nil {
		r.Refused = float64(refused.Requests) / refused.Seconds
	}
	return r, nil
}

// watch returns the router's resident memory in steps of the window, in MiB, until ended is closed.
func (b *bench) watch(ended <-chan struct{}) (series []float64) {
	step := time.NewTicker(b.Window / samples)
	defer step.Stop()
	for {
		if u, err := b.on.Usage(); err == nil {
			series = append(series, float64(u.RSS)/(1<<20))
		}
		select {
		case <-ended:
			return series
		case <-step.C:
		}
	}
}

// wrongKeys returns keys of which none is good: texts that are no key, keys with a wrong checksum,
// keys that nobody has, and one that was revoked.
func wrongKeys(revoked string) func(n uint64) string {
	const many = 1000 // a map with all keys sees them at random all the same
	unknown, damaged := make([]string, many), make([]string, many)
	for i := range many {
		unknown[i], _ = keys.Generate()
		text, _ := keys.Generate()
		last := byte('0')
		if text[len(text)-1] == last {
			last = '1'
		}
		damaged[i] = text[:len(text)-1] + string(last)
	}
	malformed := [...]string{"sk-proj-0123456789abcdef", "cgn_", "x", "cgn_ÄÖÜ_0123", revoked + "0"}
	return func(n uint64) string {
		// 5, the usual NewEvery, has no divisor in common with 4: all kinds use new connections too
		switch i := n / 4; n % 4 {
		case 0:
			return malformed[i%uint64(len(malformed))]
		case 1:
			return damaged[i%many]
		case 2:
			return unknown[i%many]
		}
		return revoked
	}
}
