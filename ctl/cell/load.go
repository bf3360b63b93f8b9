package cell

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/fleet"
)

// Sample formats the known figures of a sample, and its age.
func Sample(l *load.Load, name string) string {
	for _, s := range load.Samples() {
		if s.Name == name {
			return figures(l, &s)
		}
	}
	return "-"
}

func figures(l *load.Load, s *load.Sample) string {
	var parts []string
	for i := range s.Signals {
		f := &s.Signals[i]
		if v, known := f.In(l).Get(); known && f.Label != "" {
			parts = append(parts, f.Label+" "+Digits(v*f.Shown)+f.Unit)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	text := strings.Join(parts, ", ")
	if at := s.At(l); !at.IsZero() {
		text += " (" + at.Age(time.Now()).Truncate(time.Millisecond).String() + ")"
	}
	return text
}

// Digits formats v. Small values have decimals.
func Digits(v float64) string {
	if v != 0 && math.Abs(v) < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Signals formats a router's knowledge of a node's load, its source, and its age.
func Signals(g *fleet.Signals) string {
	var parts []string
	for _, s := range load.Samples() {
		if text := figures(&g.Load, &s); text != "-" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return string(g.From) + ": " + strings.Join(parts, "; ")
}

// Scaled returns the figure times by; nil: it is unknown.
func Scaled(g load.Gauge, by float64) *float64 {
	v, known := g.Get()
	if !known {
		return nil
	}
	v *= by
	return &v
}
