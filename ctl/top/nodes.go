package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/screen"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
)

// nodeColumns are the columns that `top` shows of a node.
var nodeColumns = []screen.Column{
	{Name: "NODE"}, {Name: "STATE", Rank: 1}, {Name: "IN FLIGHT", Rank: 2},
	{Name: "QUEUED", Rank: 4}, {Name: "CPU WAIT %", Rank: 5}, {Name: "RTT", Rank: 6}, {Name: "RESENT %", Rank: 7},
	{Name: "SM %", Rank: 8}, {Name: "KV %", Rank: 9}, {Name: "WAIT P99", Rank: 10}, {Name: "CPU %", Rank: 11},
	{Name: "WATTS", Rank: 12}, {Name: "SLOWDOWN", Rank: 13}, {Name: "BELIEVED", Rank: 14},
	{Name: "PREDICTION", Rank: 15}, {Name: "MODELS", Rank: 16, Least: 12}, {Name: "ADDRESS", Rank: 17},
	{Name: "NOTE", Rank: 3, Least: 20},
}

// cells returns a node's row, in the order of nodeColumns.
func cells(n *admin.Node, predictions map[string]float64) []string {
	prediction := "-"
	if e, ok := predictions[n.ID]; ok {
		prediction = fmt.Sprintf("%+.3f", e)
	}
	state, s := n.State, &n.Signals
	if n.Suspect {
		state = "suspect"
	}
	return []string{
		n.ID, state, fmt.Sprintf("%d/%s", n.InFlight, cell.Limit(int(n.MaxConcurrent))),
		cell.Number(cell.Scaled(s.QueueDepth, 1), 0), percentOf(cell.Scaled(s.EngineWaitPct, 1e-2)),
		millis(roundTrip(n)), percentOf(resent(n)), cell.Number(cell.Scaled(s.SMPct, 1), 0),
		cell.Number(cell.Scaled(s.CacheUsage(), 100), 0), millis(cell.Scaled(s.RunqUsP99, 1e-3)),
		cell.Number(cell.Scaled(s.CPUPct, 1), 0), cell.Number(cell.Scaled(s.Drawn(), 1), 0), cell.Slowdown(n.Speed),
		fmt.Sprintf("%.0fs", n.Lifetime), prediction, cell.Dash(strings.Join(n.Models, ",")), n.Address,
		cell.Dash(note(n)),
	}
}

// health ranks nodes. 0: the node fails. 1: the node gets no requests. 2: the node gets few
// requests, or its last check failed, or it is slow or stalled. 3: the node is healthy.
func health(n *admin.Node) int {
	switch {
	case n.Suspect || n.State == fleet.Open.String() || n.State == fleet.Aside.String():
		return 0
	case !n.Eligible:
		return 1
	case n.Reason != "" && n.Role != string(cluster.RolePrefill) || n.LastError != "" ||
		n.State != fleet.Healthy.String() || speed(n) != "":
		return 2
	}
	return 3
}

// note returns why a node gets no requests, or few, with the error of its last check, and that it
// is slow or stalled. Without any of these, note returns the role of a node that does one part of
// the work.
func note(n *admin.Node) string {
	reason := n.Reason
	if n.Suspect {
		reason = n.SuspectWhy
	}
	if n.LastError != "" {
		reason = strings.TrimSpace(reason + " (" + n.LastError + ")")
	}
	if reason != "" && speed(n) != "" {
		reason += "; "
	}
	reason += speed(n)
	if reason == "" && n.Role != "" && n.Role != string(cluster.RoleBoth) {
		return "role " + n.Role
	}
	return reason
}

// speed says that a node is slow, beside which nodes, and that it is stalled, for how long; "" if
// it is neither.
func speed(n *admin.Node) string {
	var all []string
	if n.Speed != nil && n.Speed.Slow != "" {
		all = append(all, "slow: "+n.Speed.Slow)
	}
	if n.Speed != nil && n.Speed.Silent > 0 {
		silent, unit := time.Duration(n.Speed.Silent*float64(time.Second)), time.Second
		if silent < unit {
			unit = 10 * time.Millisecond
		}
		all = append(all, "stalled: no token for "+silent.Truncate(unit).String())
	}
	return strings.Join(all, "; ")
}

// roundTrip returns the round trip in milliseconds, by the node's kernel or that of the router's
// host.
func roundTrip(n *admin.Node) *float64 {
	rtt := cell.Scaled(n.Signals.SRTTUsP50, 1e-3)
	if rtt == nil && n.Path != nil {
		return n.Path.RTTMs
	}
	return rtt
}

// resent returns the larger of the two directions' shares, as the policy does.
func resent(n *admin.Node) *float64 {
	share := cell.Scaled(n.Signals.RetransPPM, 1e-6)
	if n.Path == nil || n.Path.Retransmitted == nil || share != nil && *share >= *n.Path.Retransmitted {
		return share
	}
	return n.Path.Retransmitted
}

// percentOf formats a share. Small shares have decimals.
func percentOf(share *float64) string {
	if share == nil {
		return "-"
	}
	return cell.Digits(*share * 100)
}

func millis(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v <= 0:
		return "0"
	}
	return cell.Brief(time.Duration(*v * float64(time.Millisecond)))
}
