package cluster

import (
	"fmt"
	"strings"
)

// Markdown returns the table of all contestants, and the tables of what only some have.
func (j *Judgement) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Load 1 is the rate that round robin holds without a growing queue, in requests per second:")
	for i, r := range j.Rates {
		fmt.Fprintf(&b, "%s %s %.2f", [2]string{"", ","}[min(i, 1)], r.Workload, r.PerSecond)
	}
	fmt.Fprintf(&b, ".\nMeans over the seeds %d to %d. In brackets the paired difference to the best other mode, with "+
		"its 95 %% interval.\n\n", j.FirstSeed, j.FirstSeed+uint64(j.Seeds)-1)
	b.WriteString(head("workload", "load", "mode", "TTFT mean ms", "TTFT p90 ms", "E2E mean ms", "hit ratio",
		"refused"))
	for _, r := range j.Rows {
		fmt.Fprintf(&b, "| %s | %g | %s | %s | %s | %s | %.3f | %.0f |\n", r.Workload, r.Load, r.Mode,
			r.cell(FigureTTFT), r.cell(FigureTTFTP90), r.cell(FigureE2E), r.Means[FigureHitRatio],
			r.Means[FigureRefused])
	}
	j.table(&b, "\nTTFT p90 before a node was slower, and meanwhile:\n\n", "before ms", "meanwhile ms", FigureUsualP90,
		FigureSlowP90)
	j.table(&b, "\nAfter all nodes were slower:\n\n", "TTFT mean ms", "E2E mean ms", FigureAfterTTFT, FigureAfterE2E)
	j.table(&b, "\nDifference between expected and real TTFT:\n\n", "median %", "p90 %", FigureErrorP50, FigureErrorP90)
	if len(j.Summary) > 0 {
		b.WriteByte('\n')
	}
	for _, s := range j.Summary {
		fmt.Fprintf(&b, "%s: best or within 3 %% of the best in %d of %d figures, worst in %d; against the best other "+
			"mode ahead in %d, equal in %d, behind in %d.\n",
			s.Mode, s.Near, s.Figures, s.Worst, s.Ahead, s.Equal, s.Behind)
	}
	return b.String()
}

func head(columns ...string) string {
	return "| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat("---|", len(columns)) + "\n"
}

// cell formats a figure with its difference to the best other contestant.
func (r *Row) cell(figure string) string {
	d, compared := r.Against[figure]
	if !compared {
		return fmt.Sprintf("%.0f", r.Means[figure])
	}
	return fmt.Sprintf("%.0f (%+.1f ± %.1f %%, %s)", r.Means[figure], d.Percent, d.Margin, d.Verdict)
}

// table writes two figures of the rows that have them, under a title.
func (j *Judgement) table(b *strings.Builder, title, first, second, firstFigure, secondFigure string) {
	for _, r := range j.Rows {
		if _, has := r.Means[firstFigure]; !has {
			continue
		}
		if title != "" {
			b.WriteString(title + head("workload", "load", "mode", first, second))
			title = ""
		}
		fmt.Fprintf(b, "| %s | %g | %s | %s | %s |\n", r.Workload, r.Load, r.Mode, r.cell(firstFigure),
			r.cell(secondFigure))
	}
}
