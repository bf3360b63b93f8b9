package compare

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// line holds one contestant's points in a plot.
type line struct {
	name string
	x, y []float64
}

// colours are the palette of Okabe and Ito, whose colours colour-blind people can distinguish too.
// In addition, each line has its own mark.
var colours = []string{"#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// marks are drawn around 0,0.
var marks = []string{
	`<circle r="3.5"/>`, `<path d="M-4 -4h8v8h-8z"/>`, `<path d="M0 -5L5 4H-5z"/>`,
	`<path d="M0 -5.5L5.5 0L0 5.5L-5.5 0z"/>`,
	`<path d="M0 5L5 -4H-5z"/>`, `<path d="M-4 -4L4 4M-4 4L4 -4"/>`, `<path d="M-5 0H5M0 -5V5"/>`,
}

// Plots writes an SVG for each sweep into dir and returns the names of the files.
func (r *Report) Plots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for i := range r.Results {
		s := &r.Results[i]
		lines := s.lines()
		if s.Plot.Figure == "" || len(lines) == 0 {
			continue
		}
		name := filepath.Join(dir, s.plotName())
		if err := os.WriteFile(name, []byte(svg(s.Title, s.Plot.X, s.Plot.Y, lines)), 0o644); err != nil {
			return names, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (s *Result) plotName() string { return s.Name + ".svg" }

// lines leaves out the points at which a contestant was late, because the cost of a token has no
// meaning there.
func (s *Result) lines() []line {
	var lines []line
	index := map[string]int{}
	for i := range s.Points {
		for k := range s.Points[i].Rows {
			row := &s.Points[i].Rows[k]
			y := SpreadOf(row.values(s.Plot.Figure)).Median
			if math.IsNaN(y) || math.IsInf(y, 0) || SpreadOf(row.values("behind")).Max > 0 {
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

// svg draws lines with two logarithmic axes, because sweeps double, and contestants differ by
// factors. The background is white, so that the text can be read on dark pages.
func svg(title, xName, yName string, lines []line) string {
	var b strings.Builder
	width, height := marginLeft+plotWidth+legendWidth, marginTop+plotHeight+marginBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="6" fill="#fff"/><text x="%d" y="24" font-size="14">%s</text>`+
		"\n", width, height, marginLeft, escape(title))
	var xs, ys []float64
	for _, l := range lines {
		xs, ys = append(xs, l.x...), append(ys, l.y...)
	}
	x, y := scaleOf(xs), scaleOf(ys)
	slices.Sort(xs)
	px := func(v float64) float64 { return marginLeft + x.at(v)*plotWidth }
	py := func(v float64) float64 { return marginTop + (1-y.at(v))*plotHeight }
	for _, v := range slices.Compact(xs) {
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+
			"\n",
			px(v), marginTop, marginTop+plotHeight, px(v), marginTop+plotHeight+18, tick(v))
	}
	for _, v := range []float64{y.from, math.Sqrt(y.from * y.to), y.to} {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			marginLeft, py(v), marginLeft+plotWidth, marginLeft-6, py(v)+4, short(v))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s (logarithmic)</text>`+"\n", marginLeft+plotWidth/2,
		height-12, escape(xName))
	fmt.Fprintf(&b, `<text transform="translate(18 %d) rotate(-90)" text-anchor="middle">%s (logarithmic)</text>`+"\n",
		marginTop+plotHeight/2, escape(yName))
	for i, l := range lines {
		points := make([]string, len(l.x))
		for k := range l.x {
			points[k] = fmt.Sprintf("%.1f,%.1f", px(l.x[k]), py(l.y[k]))
		}
		colour, mark, at := colours[i%len(colours)], marks[i%len(marks)], marginTop+12+20*i
		fmt.Fprintf(&b, `<g stroke="%s" stroke-width="2" fill="none"><polyline points="%s"/>`, colour,
			strings.Join(points, " "))
		fmt.Fprintf(&b, `<path d="M%d %dh28"/><g fill="%s" stroke-width="1.5">`, marginLeft+plotWidth+12, at-4, colour)
		for _, p := range append(points, fmt.Sprintf("%d,%d", marginLeft+plotWidth+26, at-4)) {
			fmt.Fprintf(&b, `<g transform="translate(%s)">%s</g>`, p, mark)
		}
		fmt.Fprintf(&b, `</g></g><text x="%d" y="%d">%s</text>`+"\n", marginLeft+plotWidth+46, at, escape(l.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// tick formats v for an axis.
func tick(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escape(s string) string { return escaper.Replace(s) }

// scale maps a range of values onto 0 to 1 by their logarithms.
type scale struct{ from, to float64 }

func scaleOf(values []float64) scale {
	return scale{max(slices.Min(values), 1e-6) / 1.1, slices.Max(values) * 1.1}
}

func (s scale) at(v float64) float64 {
	return (math.Log(max(v, s.from)) - math.Log(s.from)) / (math.Log(s.to) - math.Log(s.from))
}
