package policy

import "fmt"

// Explanation says how a pick came about.
type Explanation struct {
	Terms []Terms // by candidate
	Why   string  // the reason for the choice, or for choosing none
}

// Terms is one candidate's part in a pick before weighting: four terms in [0,1], and Waiting.
// Waiting is the prefill that waits at the node. Its unit is one prompt of this prompt's size, and
// it lies between 0 and 4. Total is the score. A mode other than score fills only Load (1 -
// busy/slots), and Total equals Load. Mode cost also fills Cost, and Total is the cost.
type Terms struct {
	Overlap, Waiting, Load, Power, Capacity, Total float64

	Elsewhere float64 // worth of a block that only other hosts have; mode score only

	Cost     CostTerms
	Expected ExpectedTerms // mode predicted only
	Parts    ExpectedParts // of Expected

	// Formula is the score or the cost as a sum; "" in the other modes. Requests describes the
	// load.
	Formula, Requests string

	Eligible bool
	Reason   string // why the node is no candidate; "" when it is one
}

// Line returns the node's part in a pick as one line, which is one of:
//
//	Formula for NODE: 0.5635 = 0.55 * (0.75 - 0.18 * 1.0) + 0.25 * 1.0 + 0.1 * 0.0 + 0.1 * 0.0 (...)
//	Formula for NODE: 125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)
//	Load of NODE: 4 requests on 16 slots
func (t *Terms) Line(node string) string {
	if t.Formula == "" {
		return "Load of " + node + ": " + t.Requests
	}
	return "Formula for " + node + ": " + t.Formula
}

// Explain picks as Pick does, and fills e. Explain allocates, so do not call it on the hot path.
func (p *Policy) Explain(s *Situation, e *Explanation) int {
	e.begin(s)
	pick := modes[p.Mode].of(p).pick(s, e)
	switch {
	case pick < 0 || p.Mode == Direct:
	case s.Pinned && len(s.Candidates) == 1:
		e.Why = "the request is pinned to this node"
	case s.Pinned:
		e.Why = "the request is pinned to this node; its rank: " + e.Why
	case withRoom(s.Candidates) == 1:
		e.Why = "the only candidate with room"
	}
	return pick
}

// begin fills in what all modes share, and the reason for choosing no node.
func (e *Explanation) begin(s *Situation) {
	e.Terms, e.Why = make([]Terms, len(s.Candidates)), "no candidates"
	if len(s.Candidates) > 0 {
		e.Why = fmt.Sprintf("none of %d candidates has room", len(s.Candidates))
	}
	if len(s.Candidates) == 1 {
		e.Why = "the only candidate has no room"
	}
	l := occupancyOf(s.Candidates)
	for i := range e.Terms {
		c, t := &s.Candidates[i], &e.Terms[i]
		t.Load = max(0, 1-l.of(c))
		t.Total, t.Requests = t.Load, c.load()
		if t.Eligible = c.Room(); !t.Eligible {
			t.Reason = c.full()
		}
	}
}

// full describes the load of a node without room.
func (c *Candidate) full() string {
	if c.MaxConcurrent < 0 {
		return "full: the node's other ranks have all of its slots"
	}
	return fmt.Sprintf("full: %d in flight and %d of others of %d slots", c.InFlight, c.Others, c.MaxConcurrent)
}

// load describes the node's load.
func (c *Candidate) load() string {
	load := fmt.Sprintf("%d requests", c.busy())
	if slots := c.slots(); slots > 0 {
		load += fmt.Sprintf(" on %d slots", slots)
	}
	return load
}
