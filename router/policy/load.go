package policy

import "cmp"

// busyLeast is the number of busy requests at which a node counts as fully used compared with its
// fleet, if no node has more. A lower number lets a few requests outweigh a cached prefix, and a
// higher one lets a burst gather on few nodes.
const busyLeast = 32

// occupancy holds the measures for the nodes' load.
type occupancy struct {
	typical float64 // mean of the known slots; 0: no node has a number of slots
	most    float64 // the fleet's highest number of busy requests, of nodes with typical slots; at least busyLeast
}

// occupancyOf computes the measures from all candidates, full ones included.
func occupancyOf(cands []Candidate) occupancy {
	slots, known := 0.0, 0
	for i := range cands {
		if n := cands[i].slots(); n > 0 {
			slots += float64(n)
			known++
		}
	}
	l := occupancy{most: busyLeast}
	if known > 0 {
		l.typical = slots / float64(known)
	}
	for i := range cands {
		l.most = max(l.most, l.busy(&cands[i]))
	}
	return l
}

// slots returns the lower of the node's limit and its engine's slots, or 0 if both are unknown.
func (c *Candidate) slots() int64 {
	limit, engine := max(int64(c.MaxConcurrent), 0), max(int64(c.EngineSlots), 0)
	if limit == 0 || engine == 0 {
		return max(limit, engine)
	}
	return min(limit, engine)
}

// busy returns the node's busy requests, in proportion to its slots: the number that a node with
// the typical slots would have.
func (l *occupancy) busy(c *Candidate) float64 {
	if n := c.slots(); n > 0 {
		return float64(c.busy()) * l.typical / float64(n)
	}
	return float64(c.busy())
}

// of returns the node's load: the larger one of busy/slots and of its busy requests relative to the
// fleet's highest.
func (l *occupancy) of(c *Candidate) float64 {
	busy := l.busy(c)
	if l.typical > 0 {
		return max(busy/l.typical, busy/l.most)
	}
	return busy / l.most
}

// free returns the node's free slots. A node without a number of slots has the typical number, or
// the fleet's highest number of busy requests.
func (l *occupancy) free(c *Candidate) float64 {
	slots := float64(c.slots())
	if slots == 0 {
		slots = cmp.Or(l.typical, l.most)
	}
	return max(slots-float64(c.busy()), 0)
}
