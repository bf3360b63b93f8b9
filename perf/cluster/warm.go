package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
)

// WarmTrial compares what routers know of blocks outside of engines' own memory. Requests come back
// to documents that do not fit into the engines' memory. All contestants are in one mode:
//
//   - no caches: engines have their own memory only.
//   - device: every host has a cache, which its engine and the other hosts read. The routers are
//     told nothing of it.
//   - host: the routers are told the blocks of each node's own host.
//   - fleet: they are also told what hosts get from each other.
//   - ahead: and the picked node's host begins to get it when the router picks.
type WarmTrial struct {
	Mode   string
	Policy *policy.Policy // default policy.Default()
	Loads  []float64      // shares of the rate that round robin holds without caches
	// WorkingSet is the size of all documents, in parts of the memory of all engines. Host is the
	// memory of a host's cache, in parts of its engine's.
	WorkingSet, Host   float64
	LoadRate, PullRate float64 // as in Hosts
	Routers            int     // default 1
	Requests           int     // of which the first half only fill the caches; 0: 12,000 for 8 nodes
	Seeds              int     // at least 2
	FirstSeed          uint64
	// Progress is as in Trial.
	Progress func(done, of int)
}

// WarmJudgement is the result of a WarmTrial.
type WarmJudgement struct {
	Seeds     int     `json:"seeds"`
	FirstSeed uint64  `json:"first_seed"`
	PerSecond float64 `json:"requests_per_second"` // at load 1
	Rows      []*Row  `json:"rows"`                // by load and contestant
	// Against are the rows of host, fleet and ahead beside those of device at the same load.
	Against []WarmAgainst `json:"against"`
}

// WarmAgainst compares a contestant with the one whose routers are told nothing.
type WarmAgainst struct {
	Load    float64               `json:"load"`
	Told    string                `json:"told"`
	Figures map[string]Difference `json:"figures"`
}

// returningRequests is the number of requests for 8 nodes.
const returningRequests = 12_000

// traffic returns the requests, and the fleet without caches.
func (t *WarmTrial) traffic() Traffic {
	fleet := fleetOf8()
	engines := fleet.Engine.CacheBlocks * fleet.Nodes
	of := Traffic{Name: "returning", Requests: returningRequests, Fleet: fleet, apart: true,
		returning: int(t.WorkingSet * float64(engines))}
	if t.Requests > 0 {
		of.Requests = t.Requests
	}
	of.Fleet.Skip, of.Fleet.Routers = of.Requests/2, t.Routers
	return of
}

// contestants returns what is compared.
func (t *WarmTrial) contestants() []Contestant {
	with := func(name string, told Told, ahead bool) Contestant {
		return Contestant{Name: name, Mode: t.Mode, Policy: t.Policy, Change: func(c *Config) {
			blocks := int(t.Host * float64(c.Engine.CacheBlocks))
			c.Hosts = Hosts{Blocks: blocks, LoadRate: t.LoadRate, PullRate: t.PullRate, Told: told,
				Ahead: ahead}
		}}
	}
	return []Contestant{
		{Name: "no caches", Mode: t.Mode, Policy: t.Policy},
		with("device", ToldNothing, false), with("host", ToldHost, false), with("fleet", ToldFleet, false),
		with("ahead", ToldFleet, true),
	}
}

// JudgeWarm simulates every contestant at every load and seed, on all CPUs. Equal trials give equal
// judgements.
func JudgeWarm(ctx context.Context, t WarmTrial) (*WarmJudgement, error) {
	all := t.contestants()
	j, err := Judge(ctx, Trial{
		Traffics: []Traffic{t.traffic()}, Loads: t.Loads, Contestants: all, Seeds: t.Seeds, FirstSeed: t.FirstSeed,
		Progress: t.Progress,
	})
	if err != nil {
		return nil, err
	}
	w := &WarmJudgement{Seeds: j.Seeds, FirstSeed: j.FirstSeed, PerSecond: j.Rates[0].PerSecond, Rows: j.Rows}
	for from := 0; from < len(j.Rows); from += len(all) {
		rows := j.Rows[from : from+len(all)]
		for _, r := range rows {
			r.Against = nil // w has others
		}
		for _, r := range rows[2:] {
			a := WarmAgainst{Load: r.Load, Told: r.Mode, Figures: map[string]Difference{}}
			for _, f := range judged {
				d := difference(r.figure(f), rows[1].figure(f))
				d.Other = rows[1].Mode
				a.Figures[f] = d
			}
			w.Against = append(w.Against, a)
		}
	}
	return w, nil
}

// Markdown returns the table of all contestants, and that of the comparisons.
func (w *WarmJudgement) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Load 1 is the rate that round robin holds without caches, %.2f requests per second.\nMeans over the "+
		"seeds %d to %d, once the caches are full.\n\n", w.PerSecond, w.FirstSeed, w.FirstSeed+uint64(w.Seeds)-1)
	b.WriteString(head("load", "told", "TTFT mean ms", "TTFT p90 ms", "E2E mean ms", "hit ratio", "GB loaded",
		"GB pulled"))
	for _, r := range w.Rows {
		m := r.Means
		fmt.Fprintf(&b, "| %g | %s | %.0f | %.0f | %.0f | %.3f | %.0f | %.0f |\n", r.Load, r.Mode, m[FigureTTFT],
			m[FigureTTFTP90], m[FigureE2E], m[FigureHitRatio], m[FigureLoaded], m[FigurePulled])
	}
	b.WriteString("\nBeside routers that are told nothing, with the 95 % interval:\n\n" +
		head("load", "told", "TTFT mean", "TTFT p90", "E2E mean"))
	for _, a := range w.Against {
		fmt.Fprintf(&b, "| %g | %s |", a.Load, a.Told)
		for _, f := range judged {
			v := a.Figures[f]
			fmt.Fprintf(&b, " %+.1f ± %.1f %% |", v.Percent, v.Margin)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// gigabytes returns the size of the KV blocks of tokens.
func gigabytes(tokens int64) float64 {
	return float64(tokens) / trace.BlockTokens * hostBlockBytes / 1e9
}
