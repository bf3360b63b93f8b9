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
	full    float64 // the busy requests, of a node with typical slots, that use a node fully
}

// census counts candidates for an occupancy.
type census struct {
	slots   int64 // sum of the known slots
	known   int64 // candidates with known slots
	one     int64 // slots of the last candidate; 0: unknown
	n       int
	mixed   bool  // the candidates differ in their slots
	idlest  int64 // the lowest number of busy requests
	busiest int64 // the highest
}

func (t *census) add(c *Candidate) {
	slots, busy := c.slots(), c.busy()
	if t.n == 0 {
		t.one, t.idlest = slots, busy
	}
	t.n++
	t.mixed = t.mixed || slots != t.one
	t.idlest, t.busiest = min(t.idlest, busy), max(t.busiest, busy)
	if slots > 0 {
		t.slots += slots
		t.known++
	}
}

// occupancyOf computes the measures from all candidates, full ones included.
func occupancyOf(cands []Candidate) occupancy {
	var t census
	for i := range cands {
		t.add(&cands[i])
	}
	return t.occupancy(cands)
}

// occupancy computes the measures of the counted candidates.
func (t *census) occupancy(cands []Candidate) occupancy {
	var l occupancy
	if t.known > 0 {
		l.typical = float64(t.slots) / float64(t.known)
	}
	l.most = max(busyLeast, float64(t.busiest))
	if t.mixed {
		l.most = busyLeast
		for i := range cands {
			l.most = max(l.most, l.busy(&cands[i]))
		}
	}
	if l.full = l.most; l.typical > 0 {
		l.full = min(l.typical, l.most)
	}
	return l
}

// mostFree returns the highest number of free slots of the counted candidates.
func (l *occupancy) mostFree(t *census, cands []Candidate) (most float64) {
	if !t.mixed {
		return max(cmp.Or(float64(t.one), l.most)-float64(t.idlest), 0)
	}
	for i := range cands {
		most = max(most, l.free(&cands[i]))
	}
	return most
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
	busy := float64(c.busy())
	if n := float64(c.slots()); n > 0 && n != l.typical {
		return busy * l.typical / n
	}
	return busy
}

// of returns the node's load: the larger one of busy/slots and of its busy requests relative to the
// fleet's highest.
func (l *occupancy) of(c *Candidate) float64 { return l.busy(c) / l.full }

// free returns the node's free slots. A node without a number of slots has the typical number, or
// the fleet's highest number of busy requests.
func (l *occupancy) free(c *Candidate) float64 {
	slots := float64(c.slots())
	if slots == 0 {
		slots = cmp.Or(l.typical, l.most)
	}
	return max(slots-float64(c.busy()), 0)
}
