package evict

import (
	"fmt"
	"math"
	"strings"
)

// Size of a plot in characters, without its axes.
const (
	plotRows    = 16
	plotColumns = 56
)

// Plot draws the hit ratio over the size for a terminal, with a letter for each policy, and '*'
// where several meet. The axis of sizes is logarithmic.
func Plot(results []Result) string {
	if len(results) == 0 {
		return ""
	}
	low, high, from, to := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, r := range results {
		low, high = min(low, r.Prefix), max(high, r.Prefix)
		from, to = min(from, r.Share), max(to, r.Share)
	}
	low, high = math.Floor(low*20)/20, max(math.Ceil(high*20)/20, low+0.05)
	grid := make([][]byte, plotRows)
	for i := range grid {
		grid[i] = []byte(strings.Repeat(" ", plotColumns))
	}
	letters, legend := map[string]byte{}, ""
	for _, r := range results {
		if letters[r.Policy] == 0 {
			letters[r.Policy] = byte('a' + len(letters)%26)
			legend += fmt.Sprintf("  %c %s", letters[r.Policy], r.Policy)
		}
		row := int(math.Round((high - r.Prefix) / (high - low) * (plotRows - 1)))
		c := &grid[row][column(r.Share, from, to)]
		if *c == ' ' {
			*c = letters[r.Policy]
		} else if *c != letters[r.Policy] {
			*c = '*'
		}
	}
	return drawn(grid, low, high, results, from, to) + legend + "\n"
}

func column(share, from, to float64) int {
	if to <= from {
		return plotColumns / 2
	}
	return int(math.Round(math.Log(share/from) / math.Log(to/from) * (plotColumns - 4)))
}

// drawn adds axes to a grid.
func drawn(grid [][]byte, low, high float64, results []Result, from, to float64) string {
	var b strings.Builder
	for i, row := range grid {
		label := ""
		if i%5 == 0 {
			label = fmt.Sprintf("%.2f", high-(high-low)*float64(i)/(plotRows-1))
		}
		fmt.Fprintf(&b, "%6s |%s\n", label, strings.TrimRight(string(row), " "))
	}
	axis := []byte(strings.Repeat(" ", plotColumns+8))
	for _, r := range results {
		copy(axis[column(r.Share, from, to):], fmt.Sprintf("%.3g%%", 100*r.Share))
	}
	fmt.Fprintf(&b, "       +%s\n        %s\n", strings.Repeat("-", plotColumns), strings.TrimRight(string(axis), " "))
	return b.String()
}
