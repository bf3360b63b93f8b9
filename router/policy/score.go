package policy

import (
	"fmt"
	"math"
)

// fleet holds the measures for a score, over all candidates, full ones included.
type fleet struct {
	occupancy
	sm, watts, vram, throughput, wait, resent figure
	freeMax                                   float64
	waitScale, resentScale                    float64 // full use per EngineWaitPct, Retransmits; 0: not counted
	takers                                    int     // candidates that may be picked
}

// figure sums up the known values of a measurement.
type figure struct {
	sum, best float64
	n         int
}

func (f *figure) note(v float64) {
	if known(v) {
		f.sum, f.best = f.sum+v, max(f.best, v)
		f.n++
	}
}

// of returns v, or for an unknown v the mean, which is 0 without known values.
func (f *figure) of(v float64) float64 {
	if known(v) {
		return v
	}
	return f.sum / float64(max(f.n, 1))
}

// apart returns the excess of v over twice the mean of the other known values. A figure that is
// equal for all nodes then counts against none of them. v is one of the noted values. apart returns
// 0 if v is unknown or the only value.
func (f *figure) apart(v float64) float64 {
	if !known(v) || f.n < 2 {
		return 0
	}
	return max(v-2*(f.sum-v)/float64(f.n-1), 0)
}

func (p *ScoreSettings) survey(cands []Candidate) fleet {
	f := fleet{occupancy: occupancyOf(cands)}
	if p.RunDelayMs > 0 {
		f.waitScale = 10 / p.RunDelayMs // RunDelayMs is in ms of each second; 1 % of a second is 10 ms
	}
	if p.RetransmitPct > 0 {
		f.resentScale = 100 / p.RetransmitPct
	}
	for i := range cands {
		c := &cands[i]
		told := c.told()
		f.sm.note(told.SMPct.Or(unknown))
		f.watts.note(told.Drawn().Or(unknown))
		f.vram.note(float64(c.VRAM))
		f.throughput.note(float64(c.Throughput))
		if f.waitScale > 0 {
			f.wait.note(told.EngineWaitPct.Or(unknown))
		}
		if f.resentScale > 0 {
			f.resent.note(float64(c.Retransmits))
		}
		f.freeMax = max(f.freeMax, f.free(c))
		if c.room() {
			f.takers++
		}
	}
	return f
}

// unknown stands for an unknown figure.
const unknown = -1

// known returns false for NaN, infinities and negative values.
func known(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }

func (p *ScoreSettings) overlap(c *Candidate, promptBlocks int) float64 {
	device := max(c.Matched, c.Coming, 0)
	host := max(c.Host, device)
	disk := max(c.Disk, host)
	if promptBlocks <= 0 || disk == 0 {
		return 0
	}
	worth := p.Tiers.Device*float64(device)*float64(1+c.Experts) + p.Tiers.Host*float64(host-device) +
		p.Tiers.Disk*float64(disk-host)
	return min(worth/float64(promptBlocks), 1)
}

// These constants bound the waiting prefill, in blocks and in prompts.
const (
	promptLeast = 64
	waitingMost = 4
)

// waiting returns the prefill that waits at the node. Its unit is one prompt of this prompt's size.
func waiting(c *Candidate, promptBlocks int) float64 {
	return min(float64(max(c.Pending, 0))/float64(max(promptBlocks, promptLeast)), waitingMost)
}

func (f *fleet) util(c *Candidate) float64 {
	told := c.told()
	used := max(f.of(c), f.sm.of(told.SMPct.Or(unknown))/100)
	if f.waitScale > 0 {
		used = max(used, f.waitScale*f.wait.apart(told.EngineWaitPct.Or(unknown)))
	}
	if f.resentScale > 0 {
		used = max(used, f.resentScale*f.resent.apart(float64(c.Retransmits)))
	}
	return min(used, 1)
}

// coolness returns 1 - norm_watts. coolness returns 0 for every node when none reports its power.
func (f *fleet) coolness(c *Candidate) float64 {
	if f.watts.best == 0 {
		return 0
	}
	return 1 - f.watts.of(c.told().Drawn().Or(unknown))/f.watts.best
}

func (f *fleet) capacity(c *Candidate) float64 {
	return (relative(f.vram.of(float64(c.VRAM)), f.vram.best) +
		relative(f.throughput.of(float64(c.Throughput)), f.throughput.best) +
		relative(f.free(c), f.freeMax)) / 3
}

func relative(v, best float64) float64 {
	if best == 0 {
		return 0
	}
	return v / best
}

// usesPrefixes says whether the first term of a total can differ from 0. The waiting prefill in it
// is in uncached blocks. Without that term prompts have no key for ties either.
func (p *ScoreSettings) usesPrefixes() bool {
	return p.Weights.KV > 0 && (p.Tiers != Tiers{} || p.Weights.Pending > 0)
}

func (p *ScoreSettings) total(c *Candidate, f *fleet, promptBlocks int) float64 {
	w := &p.Weights
	reuse := p.overlap(c, promptBlocks) - w.Pending*waiting(c, promptBlocks)
	total := w.KV*reuse + w.Load*(1-f.util(c)) + w.Power*f.coolness(c) + w.Capacity*f.capacity(c)
	if c.Loads {
		total -= w.Adapter
	}
	return total
}

func (p *ScoreSettings) pick(s *Situation, e *Explanation) int {
	f := p.survey(s.Candidates)
	if e != nil {
		p.explain(s, &f, e)
	}
	if f.takers == 0 {
		return -1
	}
	var kept totals
	best, top, second := p.best(s.Candidates, &f, s.Blocks, &kept)
	if second < top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("highest score %.4f of %d candidates", top, f.takers)
		}
		return best
	}
	if home := s.Home - 1; home >= 0 && kept.of(p, s.Candidates, home, &f, s.Blocks) >= top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("its session is there, and its score is within %g of the best", p.Epsilon)
		}
		return home
	}
	pick, tied, keyed := p.breakTie(s, &f, best, top, &kept)
	if e != nil {
		how := "at random, the prompt has no key"
		if keyed {
			how = "by rendezvous of node id and prompt key"
		}
		e.Why = fmt.Sprintf("%d candidates within %g of the best score %.4f, chosen %s", tied, p.Epsilon, top, how)
	}
	return pick
}

// explain fills in every term of every candidate.
func (p *ScoreSettings) explain(s *Situation, f *fleet, e *Explanation) {
	for i := range e.Terms {
		c, t := &s.Candidates[i], &e.Terms[i]
		t.Overlap, t.Waiting, t.Load = p.overlap(c, s.Blocks), waiting(c, s.Blocks), 1-f.util(c)
		t.Power, t.Capacity = f.coolness(c), f.capacity(c)
		t.Total = p.total(c, f, s.Blocks)
		t.Formula = p.formula(t, s.Blocks)
	}
}

// formula returns the score as a sum of the weighted terms.
func (p *ScoreSettings) formula(t *Terms, promptBlocks int) string {
	w := &p.Weights
	term := func(weight, of float64) string { return decimal(weight) + " * " + decimal(of) }
	return decimals(t.Total, 4) + " = " + decimal(w.KV) + " * (" + decimal(t.Overlap) + " - " +
		term(w.Pending, t.Waiting) + ") + " + term(w.Load, t.Load) + " + " + term(w.Power, t.Power) + " + " +
		term(w.Capacity, t.Capacity) + cachedBlocks(t.Overlap*float64(promptBlocks), 0)
}

// totals keeps the totals of the first candidates, so a tie need not compute them again. totals
// holds -Inf for a node that may not be picked.
type totals [32]float64

// of returns the total of candidate i.
func (kept *totals) of(p *ScoreSettings, cands []Candidate, i int, f *fleet, promptBlocks int) float64 {
	if i < len(kept) {
		return kept[i]
	}
	if !cands[i].room() {
		return math.Inf(-1)
	}
	return p.total(&cands[i], f, promptBlocks)
}

// best returns the first candidate with the highest total, that total, and the next highest.
func (p *ScoreSettings) best(
	cands []Candidate, f *fleet, promptBlocks int, kept *totals,
) (best int, top, second float64) {
	best, top, second = -1, math.Inf(-1), math.Inf(-1)
	for i := range cands {
		t := math.Inf(-1)
		if cands[i].room() {
			t = p.total(&cands[i], f, promptBlocks)
		}
		if i < len(kept) {
			kept[i] = t
		}
		if t > top {
			best, top, second = i, t, top
		} else if t > second {
			second = t
		}
	}
	return best, top, second
}

// breakTie returns the winner among the candidates within Epsilon of top, and their number.
// Rendezvous hashing sends equal keys to the same node, in every router, while that node is among
// the candidates. Without a key the draw is uniform.
func (p *ScoreSettings) breakTie(
	s *Situation, f *fleet, best int, top float64, kept *totals,
) (pick, tied int, keyed bool) {
	var draw draw
	pick = best
	for i := range s.Candidates {
		if kept.of(p, s.Candidates, i, f, s.Blocks) < top-p.Epsilon {
			continue
		}
		tied++
		if tied == 1 {
			pick = i
			continue
		}
		if tied == 2 {
			draw.ask(s.Key, s.Random)
			draw.enter(s.Candidates, pick)
		}
		draw.enter(s.Candidates, i)
	}
	if tied > 1 {
		pick = draw.winner
	}
	return pick, tied, draw.keyed
}

// draw is one rendezvous among tied candidates.
type draw struct {
	key    uint64 // the mixed key, if keyed
	keyed  bool
	winner int
	high   uint64
	begun  bool
}

func (d *draw) ask(key Key, r uint64) {
	d.key = r
	if key == nil {
		return
	}
	if k := key.RendezvousKey(); k != 0 {
		d.key, d.keyed = mix(k), true
	}
}

func (d *draw) enter(cands []Candidate, i int) {
	lot := d.key + uint64(i)
	if d.keyed {
		lot = cands[i].IDHash ^ d.key
	}
	if lot = mix(lot); !d.begun || lot > d.high {
		d.winner, d.high, d.begun = i, lot, true
	}
}
