package cluster

import (
	"strings"

	"github.com/cognitora/dataplane/perf/paired"
)

// judged are the figures in which contestants are compared. Less is better.
var judged = []string{FigureTTFT, FigureTTFTP90, FigureE2E}

// recovered are figures that are compared where all contestants have them. The summary leaves them
// out.
var recovered = []string{FigureAfterTTFT, FigureAfterE2E}

// Verdict is the result of a comparison.
type Verdict string

// A contestant is ahead or behind if the interval excludes that both are equal.
const (
	Ahead  Verdict = "ahead"
	Equal  Verdict = "equal"
	Behind Verdict = "behind"
)

// Difference is the paired difference of a contestant's figure to the best other contestant's, in
// percent of the other's mean.
type Difference struct {
	Other   string  `json:"other"`
	Percent float64 `json:"percent"`
	// Margin is half of the interval that contains the difference of the means with a probability
	// of 95 %, by Student's t over the seeds.
	Margin  float64 `json:"margin"`
	Verdict Verdict `json:"verdict"`
}

// Summary counts a contestant's judged figures.
type Summary struct {
	Mode    string `json:"mode"`
	Figures int    `json:"figures"`
	// Near counts the figures with the best mean, or a mean within 3 % of the best.
	Near int `json:"best_or_within_3_pct"`
	// Worst counts the figures with the worst mean, unless it is near the best.
	Worst  int `json:"worst"`
	Ahead  int `json:"ahead"` // of the best other contestant
	Equal  int `json:"equal"`
	Behind int `json:"behind"`
}

// near is the factor up to which a mean is near the best.
const near = 1.03

// compare fills in the differences and the summary. A contestant that knows the contents of caches
// is no competitor.
func (j *Judgement) compare(contestants []Contestant) {
	n := len(contestants)
	sums := make([]Summary, n)
	var compete []int
	for k := range contestants {
		sums[k].Mode = contestants[k].Name
		if !strings.HasSuffix(contestants[k].Mode, exactSuffix) {
			compete = append(compete, k)
		}
	}
	for from := 0; from+n <= len(j.Rows) && len(compete) > 1; from += n {
		group := j.Rows[from : from+n]
		for _, k := range compete {
			group[k].Against = map[string]Difference{}
			for _, figure := range judged {
				group[k].against(figure, group, compete, &sums[k])
			}
			for _, figure := range recovered {
				if have(group, figure) {
					group[k].against(figure, group, compete, &Summary{})
				}
			}
		}
	}
	for _, k := range compete {
		j.Summary = append(j.Summary, sums[k])
	}
}

// have says whether every row has the figure for every seed.
func have(group []*Row, figure string) bool {
	for _, r := range group {
		if len(r.figure(figure)) < len(r.results) {
			return false
		}
	}
	return true
}

// against compares one figure of r with the other rows of its group, and counts it.
func (r *Row) against(figure string, group []*Row, compete []int, sum *Summary) {
	own := r.Means[figure]
	best, worst := own, own
	var other *Row
	for _, k := range compete {
		o := group[k]
		best, worst = min(best, o.Means[figure]), max(worst, o.Means[figure])
		if o != r && (other == nil || o.Means[figure] < other.Means[figure]) {
			other = o
		}
	}
	d := difference(r.figure(figure), other.figure(figure))
	d.Other = other.Mode
	r.Against[figure] = d
	sum.Figures++
	switch {
	case own <= best*near:
		sum.Near++
	case own >= worst:
		sum.Worst++
	}
	switch d.Verdict {
	case Ahead:
		sum.Ahead++
	case Equal:
		sum.Equal++
	case Behind:
		sum.Behind++
	}
}

// figure returns the values of a figure by seed.
func (r *Row) figure(name string) []float64 {
	for _, f := range figures {
		if f.name == name {
			return r.values(f.of)
		}
	}
	return nil
}

// difference compares two figures of the same seeds. Less is better.
func difference(own, other []float64) Difference {
	d := make([]float64, len(own))
	for i := range d {
		d[i] = own[i] - other[i]
	}
	at, margin := paired.Mean(d)
	of := Difference{Verdict: Equal}
	switch {
	case at+margin < 0:
		of.Verdict = Ahead
	case at-margin > 0:
		of.Verdict = Behind
	}
	if base := mean(other); base > 0 {
		of.Percent, of.Margin = 100*at/base, 100*margin/base
	}
	return of
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	return sum / float64(len(all))
}
