package dispatch

import (
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// Explanation is why a request would go where it would go.
type Explanation struct {
	Model      string          `json:"model"`
	API        string          `json:"api"`
	Mode       string          `json:"mode"`
	Blocks     int             `json:"prompt_blocks"`
	Winner     string          `json:"winner"`
	Why        string          `json:"why"`
	Candidates []ExplainedNode `json:"candidates"`
}

// ExplainedNode is one node's part in an Explanation. Terms are in [0,1] before weighting.
type ExplainedNode struct {
	Node     string  `json:"node"`
	Eligible bool    `json:"eligible"`
	Reason   string  `json:"reason,omitempty"`
	Matched  int     `json:"matched"`      // leading blocks in the engine's own memory
	Host     int     `json:"matched_host"` // with what its host has in RAM
	Disk     int     `json:"matched_disk"` // and on SSD
	Total    int     `json:"total"`
	InFlight int     `json:"in_flight"`
	Others   int     `json:"in_flight_of_others"` // of other routers and clients, as last heard
	Slots    int     `json:"max_concurrent"`
	Overlap  float64 `json:"overlap"`
	Load     float64 `json:"load"`
	Power    float64 `json:"power"`
	Capacity float64 `json:"capacity"`
	Score    float64 `json:"score"`

	Signals fleet.Signals `json:"signals"`
}

// Explain tells where the job would go now, without sending it anywhere.
func (d *Dispatcher) Explain(j *Job) (*Explanation, *apierror.Error) {
	if err := d.resolve(j); err != nil {
		return nil, err
	}
	d.match(j)
	p := d.policy.Load()
	now := time.Now()
	j.candidates(now)
	terms := make([]policy.Terms, len(j.model.nodes))
	explain := func() (int, string) {
		return p.Explain(j.cands, j.Blocks, j, d.foresee(p), terms[:len(j.cands)])
	}
	pick, why := explain()
	if pick < 0 && j.admitOthers() {
		pick, why = explain()
	}
	full := pick < 0 && j.lastResort()
	if full {
		pick, why = explain()
	}
	e := &Explanation{Model: j.model.name, API: j.API.String(), Mode: p.Mode.String(), Blocks: j.Blocks, Why: why}
	next := 0
	for i, n := range j.model.nodes {
		r := &j.reach[i]
		view := n.View(now)
		row := ExplainedNode{
			Node: n.ID, Matched: int(r.Device), Host: int(max(r.Host, r.Device)), Disk: int(max(r.Disk, r.Host, r.Device)), Total: j.Blocks,
			InFlight: int(n.InFlight()), Others: int(view.Others), Slots: int(n.MaxConcurrent()), Signals: view.Signals,
		}
		if next < len(j.able) && int(j.able[next]) == i {
			t := terms[next]
			row.Eligible, row.Reason = t.Eligible, t.Reason
			if ok, why := n.Eligible(now); !ok {
				row.Reason = "asked because no other node is left or has a free slot; " + why
			}
			row.Overlap, row.Load, row.Power, row.Capacity, row.Score = t.Overlap, t.Load, t.Power, t.Capacity, t.Total
			if next == pick {
				e.Winner = n.ID
			}
			if n.Suspect() {
				row.Reason = fleet.SuspectReason
			}
			next++
		} else {
			row.Reason = j.whyNot(n, now, full)
		}
		e.Candidates = append(e.Candidates, row)
	}
	return e, nil
}

// whyNot says why n is no candidate. full: those that are well have no free slot.
func (j *Job) whyNot(n *member, now time.Time, full bool) string {
	_, reason := n.Eligible(now)
	switch {
	case j.excludes(n):
		return "another node is pinned"
	case reason != "":
		return reason
	case n.Suspect():
		return fleet.SuspectReason
	case full:
		return "full"
	}
	return "as many requests as may be are in flight on the nodes of its role (max_queue)"
}

// foresee is what random would say next, without counting a turn.
func (d *Dispatcher) foresee(p *policy.Policy) uint64 {
	if p.Mode.Counts() {
		return d.turn.Load() + 1
	}
	return d.options.Random()
}

// Discard gives back a job that was only explained.
func (d *Dispatcher) Discard(j *Job) {
	j.recycle()
}
