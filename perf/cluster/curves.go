package cluster

import (
	"os"
	"path/filepath"

	"github.com/cognitora/dataplane/perf/compare"
)

// curves are the figures that are drawn against the load.
var curves = []struct{ name, figure, title, y string }{
	{"ttft", FigureTTFT, "mean TTFT", "ms"},
	{"token", FigurePerToken, "mean time per output token", "ms"},
	{"hits", FigureHitRatio, "cached share of the prompt tokens", "hit ratio"},
}

// Draw writes an SVG for each traffic and curve into dir and returns the names of the files.
func (j *Judgement) Draw(dir string) (names []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, r := range j.Rates {
		for _, c := range curves {
			lines := j.lines(r.Workload, c.figure)
			if len(lines) == 0 {
				continue
			}
			name := filepath.Join(dir, fileName(r.Workload)+"-"+c.name+".svg")
			const x = "load, as a share of what round robin holds"
			drawing := compare.Drawing(r.Workload+": "+c.title, x, c.y, lines)
			if err := os.WriteFile(name, []byte(drawing), 0o644); err != nil {
				return names, err
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// fileName returns the name with only letters, digits, dots and hyphens.
func fileName(name string) string {
	safe := []byte(name)
	for i, c := range safe {
		if c != '.' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			safe[i] = '-'
		}
	}
	return string(safe)
}

// lines returns one line for each contestant. A logarithmic axis has no place for 0.
func (j *Judgement) lines(workload, figure string) (lines []compare.Line) {
	index := map[string]int{}
	for _, r := range j.Points {
		y := r.Means[figure]
		if r.Workload != workload || y <= 0 {
			continue
		}
		at, ok := index[r.Mode]
		if !ok {
			at = len(lines)
			index[r.Mode] = at
			lines = append(lines, compare.Line{Name: r.Mode})
		}
		lines[at].X, lines[at].Y = append(lines[at].X, r.Load), append(lines[at].Y, y)
	}
	return lines
}
