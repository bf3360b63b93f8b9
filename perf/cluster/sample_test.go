package cluster

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/cognitora/dataplane/perf/paired"
)

// TestMeasureSample prints what it costs mode predicted to look at a sample of a large fleet, for
// perf/RESULTS.md. The figures with the sample are multiples of those without, with 95 % intervals
// over seeds. MEASURE_SAMPLE is the number of seeds. The rate for each node is that of 8 nodes.
func TestMeasureSample(t *testing.T) {
	seeds, _ := strconv.Atoi(os.Getenv("MEASURE_SAMPLE"))
	if seeds < 2 {
		t.Skip("MEASURE_SAMPLE is not set: it says with how many seeds to measure, 2 or more")
	}
	traffics, err := TrafficsNamed([]string{"chat", "agents", "bursts", "nodes"})
	if err != nil {
		t.Fatal(err)
	}
	for _, nodes := range []int{64, 128} {
		for _, of := range traffics {
			t.Run(fmt.Sprintf("%d/%s", nodes, of.Name), func(t *testing.T) { measureSample(t, of, nodes, seeds) })
		}
	}
}

func measureSample(t *testing.T, of Traffic, nodes, seeds int) {
	rate, err := of.Capacity()
	if err != nil {
		t.Fatal(err)
	}
	rate *= float64(nodes) / float64(of.Fleet.Nodes)
	of.Fleet.Nodes, of.Fleet.Mode = nodes, "predicted"
	for _, load := range []float64{0.6, 0.9} {
		pairs := make([][2]*Result, seeds)
		err := inParallel(t.Context(), 2*seeds, func(i int) error {
			w, cfg, err := of.At(2000+uint64(i/2), rate*load)
			if err != nil {
				return err
			}
			cfg.Unsampled = i%2 == 1
			pairs[i/2][i%2], err = Run(w, cfg)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("| %d | %s | %g |", nodes, of.Name, load)
		for _, f := range figures {
			switch f.name {
			case FigureTTFT, FigureTTFTP90, FigureE2E, FigureHitRatio:
				line += " " + pairedRatio(pairs, f.of) + " |"
			}
		}
		t.Log(line)
	}
}

// pairedRatio returns the mean ratio of a figure with its 95 % interval.
func pairedRatio(pairs [][2]*Result, of func(*Result) (float64, bool)) string {
	var ratios []float64
	for _, p := range pairs {
		a, _ := of(p[0])
		b, _ := of(p[1])
		ratios = append(ratios, a/b)
	}
	m, margin := paired.Mean(ratios)
	return fmt.Sprintf("%.3f ± %.3f", m, margin)
}
