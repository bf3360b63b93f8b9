package cluster

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

func envInt(n string, d int) int {
	if v, err := strconv.Atoi(os.Getenv(n)); err == nil {
		return v
	}
	return d
}

func TestDisaggX(t *testing.T) {
	names := strings.Split(os.Getenv("KINDS"), ",")
	tr, err := TrafficsNamed(names)
	if err != nil {
		t.Fatal(err)
	}
	loads := []float64{}
	for _, l := range strings.Split(os.Getenv("LOADS"), ",") {
		v, _ := strconv.ParseFloat(l, 64)
		loads = append(loads, v)
	}
	all := disaggContestants()
	if only := os.Getenv("ONLY"); only != "" {
		kept := []Contestant{}
		for _, c := range all {
			for _, o := range strings.Split(only, ";") {
				if c.Name == o {
					kept = append(kept, c)
				}
			}
		}
		all = kept
	}
	j, err := Judge(context.Background(), Trial{Traffics: tr, Loads: loads, Seeds: envInt("SEEDS", 2), FirstSeed: uint64(envInt("FIRST", 1)), Contestants: all})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range j.Rates {
		fmt.Printf("%s %.2f/s\n", r.Workload, r.PerSecond)
	}
	for _, r := range j.Rows {
		m := r.Means
		fmt.Printf("%-6s %.1f %-16s TTFT mean %7.0f p90 %7.0f | gap mean %6.1f p99 %6.1f | e2e %7.0f | handed %.2f err %4.0f hit %.2f pre %.0f\n", r.Workload, r.Load, r.Mode,
			m[FigureTTFT], m[FigureTTFTP90], m[FigureGapMean], m[FigureGapP99], m[FigureE2E], m[FigureHandedOver], m[FigureErrorP50], m[FigureHitRatio], m[FigurePreemptions])
	}
}
