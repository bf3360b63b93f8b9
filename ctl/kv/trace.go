package kv

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/kv/accesses"
	"github.com/cognitora/dataplane/perf/evict"
	"github.com/cognitora/dataplane/perf/trace"
)

// traceFlags are the flags of kv trace.
type traceFlags struct {
	gen      trace.Generator
	requests int
	sizes    []float64 // percentages of the working set
	notes    io.Writer
}

func newTrace(a *cli.App) *cobra.Command {
	f := traceFlags{notes: a.Err}
	cmd := &cobra.Command{
		Use:   "trace [FILE]",
		Short: "Replay an access trace against eviction policies and print hit ratios by size",
		Long: "Replays accesses against caches of several sizes and prints how many blocks were found, to say how " +
			"large a tier\n" +
			"should be. FILE has a JSON object per line: Mooncake's public traces, or what cgn-kvcached --trace FILE " +
			"has recorded.\n" +
			"Without one the project's generator makes the trace.\n\n" +
			"A block is a prefix hit where everything before it in its request was found too: only that saves an " +
			"engine work. In\n" +
			"brackets, where they differ, all that were found. Sizes in bytes are of the blocks' mean length, where " +
			"FILE tells lengths. " + evict.Ours + " is what cgn-kvcached does in RAM.",
		Example: "  cgn-ctl kv trace\n  cgn-ctl kv trace conversation_trace.jsonl --sizes 5,10,20",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return cli.Misused(err)
			}
			t, err := f.open(args)
			if err != nil {
				return err
			}
			return replayAccesses(a, t, &f)
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.requests, "requests", 12000, "requests of the generator")
	fl.Uint64Var(&f.gen.Seed, "seed", 1, "seed of the generator")
	fl.Float64SliceVar(&f.sizes, "sizes", []float64{1, 5, 10, 20, 40},
		"sizes of the cache in percent of the different blocks")
	return cmd
}

func (f *traceFlags) check() error {
	errs := []error{cli.InRange("requests", fmt.Sprint(f.requests), 1, cli.Most)}
	for _, s := range f.sizes {
		errs = append(errs, cli.InRange("sizes", fmt.Sprint(s), 1e-6, 100))
	}
	if len(f.sizes) == 0 || len(f.sizes) > 32 {
		errs = append(errs, errors.New("--sizes: 1 to 32 are taken"))
	}
	return errors.Join(errs...)
}

func (f *traceFlags) open(args []string) (*accesses.Trace, error) {
	if len(args) == 0 {
		f.gen.Requests = f.requests
		return generatedAccesses(f.gen.Source())
	}
	file, err := rights.Open(args[0])
	if err != nil {
		return nil, err
	}
	defer file.Close()
	t, err := accesses.Read(file)
	if torn := (*accesses.TornError)(nil); errors.As(err, &torn) {
		fmt.Fprintf(f.notes, "note: %s: %v\n", args[0], torn)
		err = nil
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", args[0], err)
	case t.Requests() == 0:
		return nil, fmt.Errorf("%s: has no accesses", args[0])
	}
	return t, nil
}

func generatedAccesses(source trace.Source) (*accesses.Trace, error) {
	t := accesses.NewTrace()
	for q, err := range trace.All(source) {
		if err != nil {
			return nil, err
		}
		t.Add(accesses.Line{HashIDs: q.HashIDs})
	}
	return t, nil
}

// traceReport is the result of kv trace.
type traceReport struct {
	Requests   int            `json:"requests"`
	Distinct   int            `json:"distinct_blocks"`
	BlockBytes int64          `json:"block_bytes_mean,omitempty"`
	Unbounded  float64        `json:"unbounded_hit_ratio"` // no cache can exceed this ratio
	Results    []evict.Result `json:"results"`
}

func replayAccesses(a *cli.App, t *accesses.Trace, f *traceFlags) error {
	makers := evict.Makers()
	r := traceReport{Requests: t.Requests(), Distinct: t.Distinct(), BlockBytes: t.BlockBytes(),
		Unbounded: evict.Replay(t, makers[0], 1).Prefix}
	for _, m := range makers {
		for _, s := range f.sizes {
			r.Results = append(r.Results, evict.Replay(t, m, s/100))
		}
	}
	return a.Show(r, func(tab *cli.Table) {
		tab.Line(fmt.Sprintf("%d requests, %d different blocks; a cache without a bound would find %.2f %%.\n",
			r.Requests, r.Distinct, 100*r.Unbounded))
		if r.BlockBytes > 0 {
			tab.Line(fmt.Sprintf("A block has %s on average, all of them have %s.\n", cell.Bytes(uint64(r.BlockBytes)),
				cell.Bytes(uint64(int64(r.Distinct)*r.BlockBytes))))
		}
		r.rows(tab, f.sizes)
	})
}

// rows writes a table with a column for each size.
func (r *traceReport) rows(tab *cli.Table, sizes []float64) {
	head, blocks, bytes := []any{"POLICY"}, []any{"blocks"}, []any{"size"}
	for i, s := range sizes {
		n := r.Results[i].Blocks
		head, blocks = append(head, fmt.Sprintf("%g %%", s)), append(blocks, n)
		bytes = append(bytes, cell.Bytes(uint64(int64(n)*r.BlockBytes)))
	}
	tab.Row(head...)
	tab.Row(blocks...)
	if r.BlockBytes > 0 {
		tab.Row(bytes...)
	}
	for i := 0; i < len(r.Results); i += len(sizes) {
		cells := []any{r.Results[i].Policy}
		for _, x := range r.Results[i : i+len(sizes)] {
			found := fmt.Sprintf("%.2f", 100*x.Prefix)
			if raw := fmt.Sprintf("%.2f", 100*x.Raw); raw != found {
				found += " (" + raw + ")"
			}
			cells = append(cells, found)
		}
		tab.Row(cells...)
	}
}
