package compare

// Line holds the points of one line in a Drawing.
type Line struct {
	Name string
	X, Y []float64 // above 0
}

// Drawing returns an SVG of the lines with logarithmic axes.
func Drawing(title, xName, yName string, lines []Line) string {
	own := make([]line, len(lines))
	for i, l := range lines {
		own[i] = line{l.Name, l.X, l.Y}
	}
	return svg(title, xName, yName, own)
}
