package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/leg"
)

// figure is a measurement and how it is shown.
type figure struct {
	name  string
	value cluster.Gauge
	scale float64
	unit  string
}

// figures shows the figures that are known, and how old their sample was.
func figures(ageMs cluster.Gauge, all ...figure) string {
	var parts []string
	for _, f := range all {
		if v, known := f.value.Get(); known {
			parts = append(parts, strings.TrimSpace(f.name+" "+digits(v*f.scale)+f.unit))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	text := strings.Join(parts, ", ")
	if age, known := ageMs.Get(); known {
		text += " (" + max(time.Duration(age)*time.Millisecond, 0).String() + ")"
	}
	return text
}

// digits writes v with decimals where it is small.
func digits(v float64) string {
	if v != 0 && math.Abs(v) < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func kernelCell(h *cluster.NodeHealth) string {
	return figures(h.KernelAgeMs, figure{"cpu", h.CPUPct, 1, "%"}, figure{"starved", h.EngineWaitPct, 1, "%"},
		figure{"wait", h.RunqUsP99, 1e-3, "ms"}, figure{"rtt", h.SRTTUsP50, 1e-3, "ms"}, figure{"resent", h.RetransPPM, 1, "ppm"})
}

// signalsCell shows what a router knows of a node's load, where from, and how old it is.
func signalsCell(n *leg.ExplainedNode) string {
	g := &n.Signals
	value := func(v *float64) cluster.Gauge {
		if v == nil {
			return cluster.Gauge{}
		}
		return cluster.Known(*v)
	}
	age := func(ms *int64) cluster.Gauge {
		if ms == nil {
			return cluster.Gauge{}
		}
		return cluster.Known(float64(*ms))
	}
	var parts []string
	for _, text := range []string{
		figures(age(g.SMAgeMs), figure{"sm", value(n.SM), 100, "%"}),
		figures(age(g.KernelAgeMs), figure{"cpu", value(g.CPU), 100, "%"}, figure{"starved", value(g.EngineWait), 100, "%"},
			figure{"wait", value(g.RunDelayMs), 1, "ms"}, figure{"rtt", value(g.RTTMs), 1, "ms"}, figure{"resent", value(g.Retransmits), 1e6, "ppm"}),
		figures(age(g.WattsAgeMs), figure{"", value(n.Watts), 1, " W"}),
	} {
		if text != "-" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return g.From + ": " + strings.Join(parts, "; ")
}
