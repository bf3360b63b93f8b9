package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// DisaggTrial compares fleets of equal nodes in which one node may compute a prompt and another one
// answer. All are in mode predicted:
//
//   - both, never: every node has role both and no connector.
//   - both, automatic: every node has role both and a connector, and the mode decides for each
//     request.
//   - P:D, always: P nodes have role prefill and D nodes role decode. P nodes compute all prompts
//     that are not short.
//   - P:D, automatic: the same nodes, and the mode decides for each request.
type DisaggTrial struct {
	Traffics  []Traffic
	Loads     []float64     // shares of the rate that round robin holds with nodes of role both
	Prefill   []int         // numbers of nodes of role prefill
	Transfer  time.Duration // as in Config
	Seeds     int           // at least 2
	FirstSeed uint64
	// Progress is as in Trial.
	Progress func(done, of int)
}

// DisaggJudgement is the result of a DisaggTrial.
type DisaggJudgement struct {
	Seeds     int             `json:"seeds"`
	FirstSeed uint64          `json:"first_seed"`
	Rates     []Rate          `json:"rates"`
	Rows      []*Row          `json:"rows"`    // by traffic, load and fleet
	Against   []DisaggAgainst `json:"against"` // by traffic, load, ratio and fleet
}

// DisaggAgainst compares an automatic fleet with the better one of P:D, always and of both, never,
// figure by figure. The better one of a figure may be the worse one of another.
type DisaggAgainst struct {
	Workload string                `json:"workload"`
	Load     float64               `json:"load"`
	Ratio    string                `json:"ratio"` // P:D
	Fleet    string                `json:"fleet"`
	Figures  map[string]Difference `json:"figures"`
}

// colocateBelow is the default of router.disagg.colocate_below_tokens.
const colocateBelow = 512

// Names of fleets.
const (
	bothNever = "both, never"
	bothAuto  = "both, automatic"
	always    = ", always"
	automatic = ", automatic"
)

// contestants returns the fleets, for traffic whose fleet has this number of nodes.
func (t *DisaggTrial) contestants(nodes int) ([]Contestant, error) {
	fleet := func(name string, change func(*Config)) Contestant {
		return Contestant{Name: name, Mode: policy.Predicted.String(), Change: func(c *Config) {
			c.Gaps, c.Transfer, c.Disagg.ColocateBelow = true, t.Transfer, colocateBelow
			change(c)
		}}
	}
	all := []Contestant{
		fleet(bothNever, func(*Config) {}),
		fleet(bothAuto, func(c *Config) { c.Roles = slices.Repeat([]cluster.Role{cluster.RoleBoth}, c.Nodes) }),
	}
	for i, p := range t.Prefill {
		if p < 1 || p >= nodes || slices.Contains(t.Prefill[:i], p) {
			return nil, fmt.Errorf("%d nodes of role prefill: must be 1 to %d, each number once", p, nodes-1)
		}
		roles := append(slices.Repeat([]cluster.Role{cluster.RolePrefill}, p),
			slices.Repeat([]cluster.Role{cluster.RoleDecode}, nodes-p)...)
		all = append(all,
			fleet(ratio(p, nodes)+always, func(c *Config) { c.Roles, c.Disagg.Always = roles, true }),
			fleet(ratio(p, nodes)+automatic, func(c *Config) { c.Roles = roles }))
	}
	return all, nil
}

func ratio(prefill, nodes int) string { return fmt.Sprintf("%d:%d", prefill, nodes-prefill) }

// JudgeDisagg simulates every fleet under every traffic, load and seed, on all CPUs. Equal trials
// give equal judgements. All traffic must have the same number of nodes.
func JudgeDisagg(ctx context.Context, t DisaggTrial) (*DisaggJudgement, error) {
	nodes := fleetOf8().Nodes
	if len(t.Traffics) > 0 {
		nodes = t.Traffics[0].Fleet.Nodes
	}
	contestants, err := t.contestants(nodes)
	if err != nil {
		return nil, err
	}
	j, err := Judge(ctx, Trial{
		Traffics: t.Traffics, Loads: t.Loads, Contestants: contestants, Seeds: t.Seeds, FirstSeed: t.FirstSeed,
		Progress: t.Progress,
	})
	if err != nil {
		return nil, err
	}
	d := &DisaggJudgement{Seeds: j.Seeds, FirstSeed: j.FirstSeed, Rates: j.Rates, Rows: j.Rows}
	for rows := range slices.Chunk(j.Rows, len(contestants)) {
		for _, r := range rows {
			r.Against = nil // d has others
		}
		for i, p := range t.Prefill {
			split := rows[2+2*i : 4+2*i]
			for _, own := range []*Row{rows[1], split[1]} {
				d.Against = append(d.Against, own.againstBetter(ratio(p, nodes), rows[0], split[0]))
			}
		}
	}
	return d, nil
}

// disaggFigures are the figures in which fleets are compared. Less is better.
var disaggFigures = []string{FigureTTFTP90, FigureGapP99, FigureE2E, FigureWeighted}

// againstBetter compares r with the better one of two rows.
func (r *Row) againstBetter(ratio string, a, b *Row) DisaggAgainst {
	all := DisaggAgainst{
		Workload: r.Workload, Load: r.Load, Ratio: ratio, Fleet: r.Mode, Figures: map[string]Difference{},
	}
	for _, f := range disaggFigures {
		other := slices.MinFunc([]*Row{a, b}, func(a, b *Row) int { return cmp.Compare(a.Means[f], b.Means[f]) })
		d := difference(r.figure(f), other.figure(f))
		d.Other = other.Mode
		all.Figures[f] = d
	}
	return all
}

// Markdown returns the table of all fleets, and that of the comparisons.
func (d *DisaggJudgement) Markdown() string {
	var b strings.Builder
	b.WriteString("Load 1 is the rate that round robin holds without a growing queue, in requests per second:")
	for i, r := range d.Rates {
		fmt.Fprintf(&b, "%s %s %.2f", [2]string{"", ","}[min(i, 1)], r.Workload, r.PerSecond)
	}
	fmt.Fprintf(&b, ".\nMeans over the seeds %d to %d.\n\n", d.FirstSeed, d.FirstSeed+uint64(d.Seeds)-1)
	b.WriteString(head("workload", "load", "fleet", "TTFT mean ms", "TTFT p90 ms", "token gap mean ms",
		"token gap p99 ms", "E2E mean ms", "weighted ms", "handed over"))
	for _, r := range d.Rows {
		m := r.Means
		fmt.Fprintf(&b, "| %s | %g | %s | %.0f | %.0f | %.1f | %.1f | %.0f | %.0f | %.0f %% |\n", r.Workload, r.Load, r.Mode,
			m[FigureTTFT], m[FigureTTFTP90], m[FigureGapMean], m[FigureGapP99], m[FigureE2E],
			m[FigureWeighted], 100*m[FigureHandedOver])
	}
	if len(d.Against) == 0 {
		return b.String()
	}
	b.WriteString("\nThe automatic fleets against the better one of P:D, always and of both, never, figure by figure, " +
		"with the 95 % interval:\n\n" +
		head("workload", "load", "P:D", "fleet", "TTFT p90", "token gap p99", "E2E mean", "weighted"))
	for _, a := range d.Against {
		fmt.Fprintf(&b, "| %s | %g | %s | %s |", a.Workload, a.Load, a.Ratio, a.Fleet)
		for _, f := range disaggFigures {
			v := a.Figures[f]
			fmt.Fprintf(&b, " %+.1f ± %.1f %% of %s |", v.Percent, v.Margin, v.Other)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
