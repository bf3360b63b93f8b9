package policy

const (
	// slotsLeast is the least number of slots assumed for a node when no node's slots are known.
	slotsLeast = 16
	// shareLeast is the number of busy requests that max_share always allows a node, if its own
	// slots allow them.
	shareLeast = 32
)

// occupancy holds the measures for the nodes' load.
type occupancy struct {
	unknown float64 // slots assumed for a node without a number of its own
	use     float64 // busy/slots over all candidates
}

// occupancyOf computes the measures from all candidates, full ones included.
func occupancyOf(cands []Candidate) occupancy {
	var busy, slots float64
	known := 0
	for i := range cands {
		busy += float64(cands[i].busy())
		if n := cands[i].slots(); n > 0 {
			slots += float64(n)
			known++
		}
	}
	var l occupancy
	if n := len(cands); known > 0 {
		l.unknown = slots / float64(known)
		l.use = busy / (l.unknown * float64(n))
	} else if n > 0 {
		l.unknown = max(2*busy/float64(n), slotsLeast)
		l.use = busy / (l.unknown * float64(n))
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

func (l *occupancy) slots(c *Candidate) float64 {
	if n := c.slots(); n > 0 {
		return float64(n)
	}
	return l.unknown
}

// crowded says whether the node's load is at least the fleet's load multiplied by times.
func (l *occupancy) of(c *Candidate) float64 { return float64(c.busy()) / l.slots(c) }

func (l *occupancy) free(c *Candidate) float64 { return max(l.slots(c)-float64(c.busy()), 0) }

// crowded says whether the node has at least times the fleet's load.
func (l *occupancy) crowded(c *Candidate, times float64) bool {
	least := int64(shareLeast)
	if n := c.slots(); n > 0 {
		least = min(least, n)
	}
	return times > 0 && c.busy() >= least && l.of(c) >= times*l.use
}
