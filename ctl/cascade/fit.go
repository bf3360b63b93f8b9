package cascade

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/logprobs"
)

const (
	maxRecords = 256 << 20 // bytes of a file
	rows       = 21        // of the table: a step of 5 % each
)

// fitted is the result of the command.
type fitted struct {
	Records int `json:"records"`
	// Best is the cheapest threshold with the wanted quality; nil: the cascade never has it.
	Best  *Point  `json:"best"`
	Large Point   `json:"large_alone"`
	Curve []Point `json:"curve"`
}

func newFit(a *cli.App) *cobra.Command {
	var o options
	var measure string
	within, all := 0.0, false
	c := &cobra.Command{
		Use: "fit FILE", Short: "Find the threshold of a cascade by recorded answers",
		Long: "Reads answers of a small and a large model to the same questions, and prints what each threshold costs and how " +
			"many answers\nare right. The last line is the cheapest threshold whose quality is within --within of that of " +
			"the large model alone.\n\nFILE (- is standard input) has one JSON object in a line:\n" +
			`  {"logprobs":[-0.1,-0.7],"small_right":true,"large_right":true,"small_cost":1.2,"large_cost":10}` + "\n" +
			"logprobs are those of the small model's content tokens; confidence in their place is the measure itself. " +
			"A cost is a number\nin any unit, for example cents; without it --small-cost and --large-cost count. " +
			"docs/cascade.md says how to record answers.",
		Example: "  cgn-ctl cascade fit answers.jsonl\n" +
			"  cgn-ctl cascade fit answers.jsonl --measure quantile --quantile 0.1 --tokens 32 --within 0.02",
		Args: cli.OneArgument("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if measure != "mean" && measure != "quantile" {
				return cli.Misused(fmt.Errorf("--measure %q: must be mean or quantile", measure))
			}
			err := cli.InRanges(c.Flags(), map[string][2]float64{
				"quantile": {0, 1}, "tokens": {0, logprobs.MaxTokens}, "within": {0, 1},
				"small-cost": {0, cli.Most}, "large-cost": {0, cli.Most},
			})
			if err != nil {
				return err
			}
			o.measure.Quantile = measure == "quantile"
			doc, err := cli.ReadInput(c, args[0], maxRecords)
			if err != nil {
				return err
			}
			answers, err := read(doc, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			f := fit(answers, within)
			return a.Show(f, func(t *cli.Table) { f.write(t, all) })
		},
	}
	f := c.Flags()
	f.StringVar(&measure, "measure", "mean", "measure of the logprobs, as router.cascade.measure: mean or quantile")
	f.Float64Var(&o.measure.Q, "quantile", 0.1, "the quantile, as router.cascade.quantile")
	f.IntVar(&o.tokens, "tokens", 0, "leading tokens that count, as router.cascade.tokens with judge = stream; 0: all")
	f.Float64Var(&o.smallCost, "small-cost", 1, "cost of an answer of the small model, for records without small_cost")
	f.Float64Var(&o.largeCost, "large-cost", 10, "cost of an answer of the large model, for records without large_cost")
	f.Float64Var(&within, "within", 0.01, "share of right answers that may be lost against the large model alone")
	f.BoolVar(&all, "all", false, "print every threshold, not one for each 5 % of escalated answers")
	return c
}

// fit returns the curve of the answers, and the cheapest threshold that loses at most this share of
// right answers.
func fit(all []answer, within float64) fitted {
	f := fitted{Records: len(all), Large: alone(all), Curve: curve(all)}
	if best, ok := cheapest(f.Curve, f.Large.Quality-within); ok {
		f.Best = &best
	}
	return f
}

func (f *fitted) write(t *cli.Table, all bool) {
	points := f.Curve
	if !all {
		points = thinned(points, rows)
	}
	t.Row("THRESHOLD", "ESCALATED", "COST", "OF LARGE", "QUALITY")
	for _, p := range points {
		t.Row(cells(p)...)
	}
	row := cells(f.Large)
	row[0] = "large alone"
	t.Row(row...)
	if f.Best == nil {
		t.Line("\nno threshold has this quality; raise --within")
		return
	}
	t.Line(fmt.Sprintf("\nconfidence_threshold = %s: %s of the cost of the large model alone, quality %s against %s (%d records)",
		decimals(f.Best.Threshold), percent(f.Best.Relative), percent(f.Best.Quality), percent(f.Large.Quality),
		f.Records))
}

func cells(p Point) []any {
	threshold := decimals(p.Threshold)
	if p.Threshold == cluster.LeastConfidence {
		threshold = "none"
	}
	return []any{threshold, percent(p.Escalated), decimals(p.Cost), percent(p.Relative), percent(p.Quality)}
}

func decimals(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func percent(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }
