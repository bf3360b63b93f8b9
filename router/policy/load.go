package policy

// busyLeast is the number of busy requests at which a node counts as fully used compared with its
// fleet, if no node has more. A lower number lets a few requests outweigh a cached prefix, and a
// higher one lets a burst gather on few nodes.
const busyLeast = 32

// occupancy holds the measures for the nodes' load.
type occupancy struct {
	// typical is the mean of the known slots. If no node has a number of slots, typical is the
	// fleet's highest number of busy requests, at least busyLeast.
	typical  float64
	full     float64 // the busy requests at which a node with typical slots counts as fully used
	freeMost float64 // the highest number of free slots
}

// census counts candidates for an occupancy.
type census struct {
	slots, known    int64 // sum of the known slots, and their number
	idlest, busiest int64 // the lowest and the highest number of busy requests
	first           int64 // slots of the first candidate
	mixed           bool  // the candidates differ in their slots
}

// newCensus returns a census that has yet to count all candidates, the first one included.
func newCensus(cands []Candidate) (t census) {
	if len(cands) > 0 {
		t.idlest, t.first = cands[0].busy(), cands[0].slots()
	}
	return t
}

// add counts a candidate.
func (t *census) add(busy, slots int64) {
	t.idlest, t.busiest = min(t.idlest, busy), max(t.busiest, busy)
	if slots != t.first {
		t.mixed = true
	}
	if slots > 0 {
		t.slots += slots
		t.known++
	}
}

// occupancyOf computes the measures from all candidates, full ones included.
func occupancyOf(cands []Candidate) occupancy {
	t := newCensus(cands)
	for i := range cands {
		t.add(cands[i].busy(), cands[i].slots())
	}
	return t.occupancy(cands)
}

// occupancy computes the measures of the counted candidates. Only a fleet of nodes that differ in
// their slots is looked at again.
func (t *census) occupancy(cands []Candidate) (l occupancy) {
	most := max(busyLeast, float64(t.busiest)) // of nodes with typical slots
	if t.known == 0 {
		l.typical = most
	} else {
		l.typical = float64(t.slots) / float64(t.known)
	}
	if t.mixed {
		most = busyLeast
		for i := range cands {
			busy, slots := l.seats(&cands[i])
			most, l.freeMost = max(most, l.alike(busy, slots)), max(l.freeMost, slots-busy)
		}
	} else {
		l.freeMost = max(l.typical-float64(t.idlest), 0)
	}
	l.full = min(l.typical, most)
	return l
}

// slots returns the lower of the node's limit and its engine's slots, or 0 if both are unknown.
func (c *Candidate) slots() int64 {
	if c.EngineSlots > 0 && (c.MaxConcurrent <= 0 || c.EngineSlots < c.MaxConcurrent) {
		return int64(c.EngineSlots)
	}
	return int64(max(c.MaxConcurrent, 0))
}

// seats returns the node's busy requests and its slots. A node without a number of slots has the
// typical number.
func (l *occupancy) seats(c *Candidate) (busy, slots float64) {
	slots = l.typical
	if n := c.slots(); n > 0 {
		slots = float64(n)
	}
	return float64(c.busy()), slots
}

// alike returns the busy requests in proportion to the slots: the number that a node with the
// typical slots would have.
func (l *occupancy) alike(busy, slots float64) float64 {
	if slots != l.typical {
		return busy * l.typical / slots
	}
	return busy
}

// used returns the load of a node with these seats: the larger one of busy/slots and of its busy
// requests relative to the fleet's highest.
func (l *occupancy) used(busy, slots float64) float64 { return l.alike(busy, slots) / l.full }

// of returns the node's load.
func (l *occupancy) of(c *Candidate) float64 { return l.used(l.seats(c)) }
