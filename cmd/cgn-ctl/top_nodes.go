package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
)

// nodeColumns are what `top` shows of a node.
var nodeColumns = []column{
	{name: "NODE", least: 28, middle: true}, {name: "STATE", rank: 1}, {name: "IN FLIGHT", rank: 2},
	{name: "QUEUED", rank: 4}, {name: "CPU WAIT %", rank: 5}, {name: "RTT", rank: 6}, {name: "RESENT %", rank: 7},
	{name: "SM %", rank: 8}, {name: "KV %", rank: 9}, {name: "WAIT P99", rank: 10}, {name: "CPU %", rank: 11},
	{name: "WATTS", rank: 12}, {name: "BELIEVED", rank: 13}, {name: "PREDICTION", rank: 14},
	{name: "MODELS", rank: 15, least: 12}, {name: "ADDRESS", rank: 16}, {name: "NOTE", rank: 3, least: 20},
}

// cells are a node's row, in the order of nodeColumns.
func (n *fleetNode) cells(predictions map[string]float64) []string {
	prediction := "-"
	if e, ok := predictions[n.ID]; ok {
		prediction = fmt.Sprintf("%+.3f", e)
	}
	state, s := n.State, &n.Signals
	if n.Suspect {
		state = "suspect"
	}
	return []string{
		n.ID, state, fmt.Sprintf("%d/%s", n.InFlight, limitCell(int(n.MaxConcurrent))),
		number(scaled(s.QueueDepth, 1), 0),
		percentOf(scaled(s.EngineWaitPct, 1e-2)), millis(n.roundTrip()), percentOf(n.resent()),
		percent(scaled(s.SMPct, 1e-2)), percent(scaled(s.CacheUsage(), 1)), millis(scaled(s.RunqUsP99, 1e-3)),
		percent(scaled(s.CPUPct, 1e-2)), number(scaled(s.Drawn(), 1), 0), fmt.Sprintf("%.0fs", n.Lifetime), prediction,
		dash(strings.Join(n.Models, ",")), n.Address, dash(n.note()),
	}
}

// health ranks nodes: 0, it fails; 1, it gets no requests; 2, it gets few, or its last check
// failed; 3, all is well.
func (n *fleetNode) health() int {
	switch {
	case n.Suspect || n.State == fleet.Open.String() || n.State == fleet.Aside.String():
		return 0
	case !n.Eligible:
		return 1
	case n.Reason != "" && n.Role != string(cluster.RolePrefill) || n.LastError != "" ||
		n.State != fleet.Healthy.String():
		return 2
	}
	return 3
}

// note says why a node gets no requests, or few, with what its last check failed with.
func (n *fleetNode) note() string {
	reason := n.Reason
	if n.Suspect {
		reason = n.SuspectWhy
	}
	if n.LastError == "" {
		return reason
	}
	return strings.TrimSpace(reason + " (" + n.LastError + ")")
}

// roundTrip is in milliseconds, by the node's kernel, or that of the router's host.
func (n *fleetNode) roundTrip() *float64 {
	rtt := scaled(n.Signals.SRTTUsP50, 1e-3)
	if rtt == nil && n.Path != nil {
		return n.Path.RTTMs
	}
	return rtt
}

// resent is the larger share of the two directions, as the policy has it.
func (n *fleetNode) resent() *float64 {
	share := scaled(n.Signals.RetransPPM, 1e-6)
	if n.Path == nil || n.Path.Retransmitted == nil || share != nil && *share >= *n.Path.Retransmitted {
		return share
	}
	return n.Path.Retransmitted
}

func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", *share*100)
}

// percentOf has decimals where there is little.
func percentOf(share *float64) string {
	if share == nil {
		return "-"
	}
	return digits(*share * 100)
}

func millis(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v <= 0:
		return "0"
	}
	return brief(time.Duration(*v * float64(time.Millisecond)))
}
