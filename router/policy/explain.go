package policy

import "fmt"

// Terms is one candidate's part in a pick before weighting: four terms in [0,1], and Waiting.
// Waiting is the prefill that waits at the node. Its unit is one prompt of this prompt's size, and
// it lies between 0 and 4. Total is the score. A mode other than score fills only Load (1 -
// busy/slots), and Total equals Load.
type Terms struct {
	Overlap, Waiting, Load, Power, Capacity, Total float64

	Eligible bool
	Reason   string // why the node is no candidate; "" when it is one
}

// Explain picks as Pick does with the same arguments, and says why. Explain fills out[i] for every
// candidate, as far as out is long. Explain allocates, so do not call it on the hot path.
func (p *Policy) Explain(cands []Candidate, promptBlocks int, key Key, r uint64, out []Terms) (pick int, why string) {
	f := p.survey(cands)
	for i := range min(len(cands), len(out)) {
		out[i] = p.terms(&cands[i], &f, promptBlocks)
	}
	pick = p.Pick(cands, promptBlocks, key, r)
	if pick < 0 {
		return pick, noneWhy(cands)
	}
	if p.Mode == Score {
		return pick, p.scoreWhy(cands, &f, promptBlocks, key, r)
	}
	return pick, p.simpleWhy(cands, pick)
}

func (p *Policy) terms(c *Candidate, f *fleet, promptBlocks int) Terms {
	t := Terms{Eligible: true, Load: max(0, 1-f.of(c))}
	switch {
	case !c.room():
		t.Eligible = false
		t.Reason = fmt.Sprintf("full: %d in flight and %d of others of %d slots", c.InFlight, c.Others, c.MaxConcurrent)
	case p.Mode == Score && !f.takes(c):
		t.Eligible = false
		t.Reason = fmt.Sprintf("more than its share: %d requests are %.2g times the fleet's load, "+
			"max_share is %g", c.busy(), f.of(c)/f.use, f.share)
	}
	if p.Mode != Score {
		t.Total = t.Load
		return t
	}
	t.Overlap, t.Waiting, t.Load = p.overlap(c, promptBlocks), waiting(c, promptBlocks), 1-f.util(c)
	t.Power, t.Capacity = f.coolness(c), f.capacity(c)
	t.Total = p.total(c, f, promptBlocks)
	return t
}

func noneWhy(cands []Candidate) string {
	if len(cands) == 0 {
		return "no candidates"
	}
	return fmt.Sprintf("none of %d candidates has room", len(cands))
}

func (p *Policy) scoreWhy(cands []Candidate, f *fleet, promptBlocks int, key Key, r uint64) string {
	var kept totals
	best, top, _ := p.best(cands, f, promptBlocks, &kept)
	_, tied := p.breakTie(cands, f, promptBlocks, best, top, &kept, key, r)
	if tied == 1 {
		return fmt.Sprintf("highest score %.4f of %d candidates", top, f.takers)
	}
	how := "at random, the prompt has no key"
	if key != nil && key.RendezvousKey() != 0 {
		how = "by rendezvous of node id and prompt key"
	}
	return fmt.Sprintf("%d candidates within %g of the best score %.4f, chosen %s", tied, p.Epsilon, top, how)
}

func (p *Policy) simpleWhy(cands []Candidate, pick int) string {
	c, n := &cands[pick], withRoom(cands)
	load := fmt.Sprintf("%d requests", c.busy())
	if slots := c.slots(); slots > 0 {
		load += fmt.Sprintf(" on %d slots", slots)
	}
	switch p.Mode {
	case RoundRobin:
		return fmt.Sprintf("its turn among %d candidates with room", n)
	case Random:
		return fmt.Sprintf("drawn at random among %d candidates with room", n)
	case PowerOfTwo:
		return fmt.Sprintf("the less loaded of two drawn among %d candidates, %s", n, load)
	}
	return fmt.Sprintf("least loaded of %d candidates, %s", n, load)
}
