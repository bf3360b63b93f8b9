package compare

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// line is one contestant's points in a plot.
type line struct {
	name string
	x, y []float64
}

// colours tell the lines apart, in print too.
var colours = []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#566573", "#117a65"}

// Plots writes an SVG for each sweep into dir and returns the files' names.
func (r *Report) Plots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for i := range r.Results {
		s := &r.Results[i]
		if s.Plot.Figure == "" {
			continue
		}
		name := filepath.Join(dir, s.Name+".svg")
		if err := os.WriteFile(name, []byte(svg(s.Title, s.Plot.X, s.Plot.Y, s.lines())), 0o644); err != nil {
			return names, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (s *Result) lines() []line {
	var lines []line
	index := map[string]int{}
	for i := range s.Points {
		for k := range s.Points[i].Rows {
			row := &s.Points[i].Rows[k]
			y := spread(row.values(s.Plot.Figure)).Median
			if math.IsNaN(y) || math.IsInf(y, 0) {
				continue
			}
			at, ok := index[row.Contestant]
			if !ok {
				at = len(lines)
				index[row.Contestant] = at
				lines = append(lines, line{name: row.Contestant})
			}
			lines[at].x, lines[at].y = append(lines[at].x, s.Points[i].Value), append(lines[at].y, y)
		}
	}
	return lines
}

// Size of a plot in pixels; the legend is on the right.
const (
	plotWidth, plotHeight               = 560, 320
	marginLeft, marginTop, marginBottom = 60, 40, 50
	legendWidth                         = 150
)

// svg draws lines with both axes logarithmic: sweeps double, and contestants differ by factors.
func svg(title, xName, yName string, lines []line) string {
	var b strings.Builder
	width, height := marginLeft+plotWidth+legendWidth, marginTop+plotHeight+marginBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="22" font-size="14">%s</text>`+"\n", width, height, marginLeft, escape(title))
	x, y := newScale(lines, true), newScale(lines, false)
	px := func(v float64) float64 { return marginLeft + x.at(v)*plotWidth }
	py := func(v float64) float64 { return marginTop + (1-y.at(v))*plotHeight }
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			px(v), marginTop, px(v), marginTop+plotHeight, px(v), marginTop+plotHeight+18, short(v))
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			marginLeft, py(v), marginLeft+plotWidth, py(v), marginLeft-6, py(v)+4, short(v))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", marginLeft+plotWidth/2, height-12, escape(xName))
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", marginTop+plotHeight/2, escape(yName))
	for i, l := range lines {
		colour := colours[i%len(colours)]
		points := ""
		for k := range l.x {
			points += fmt.Sprintf("%.1f,%.1f ", px(l.x[k]), py(l.y[k]))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px(l.x[k]), py(l.y[k]), colour)
		}
		at := marginTop + 12 + 18*i
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(points), colour)
		fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n",
			marginLeft+plotWidth+12, at-4, marginLeft+plotWidth+32, at-4, colour, marginLeft+plotWidth+38, at, escape(l.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escape(s string) string { return escaper.Replace(s) }

// scale maps a range of values onto 0 to 1 by their logarithms.
type scale struct{ from, to float64 }

func newScale(lines []line, x bool) scale {
	s := scale{math.Inf(1), math.Inf(-1)}
	for _, l := range lines {
		values := l.y
		if x {
			values = l.x
		}
		for _, v := range values {
			if v > 0 {
				s.from, s.to = min(s.from, v), max(s.to, v)
			}
		}
	}
	if s.from > s.to {
		return scale{1, 10}
	}
	return scale{s.from / 1.1, s.to * 1.1}
}

func (s scale) at(v float64) float64 {
	return (math.Log(max(v, s.from)) - math.Log(s.from)) / (math.Log(s.to) - math.Log(s.from))
}

// ticks are 1, 2 and 5 times the powers of ten within the range.
func (s scale) ticks() (t []float64) {
	for e := math.Floor(math.Log10(s.from)); e <= math.Log10(s.to); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= s.from && v <= s.to {
				t = append(t, v)
			}
		}
	}
	return t
}
