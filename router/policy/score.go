package policy

import (
	"fmt"
	"math"
	"slices"
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

// relative returns v, or for an unknown v the mean, relative to the best value. relative returns 0 if
// no value is above 0.
func (f *figure) relative(v float64) float64 {
	if f.best == 0 {
		return 0
	}
	return f.of(v) / f.best
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
	var f fleet
	if p.RunDelayMs > 0 {
		f.waitScale = 10 / p.RunDelayMs // RunDelayMs is in ms of each second; 1 % of a second is 10 ms
	}
	if p.RetransmitPct > 0 {
		f.resentScale = 100 / p.RetransmitPct
	}
	var counts census
	for i := range cands {
		c := &cands[i]
		counts.add(c)
		f.note(c)
		if c.room() {
			f.takers++
		}
	}
	f.occupancy = counts.occupancy(cands)
	f.freeMax = f.mostFree(&counts, cands)
	return f
}

// note adds the measurements of a candidate.
func (f *fleet) note(c *Candidate) {
	f.vram.note(float64(c.VRAM))
	f.throughput.note(float64(c.Throughput))
	if f.resentScale > 0 {
		f.resent.note(float64(c.Retransmits))
	}
	if told := c.Load; told != nil {
		f.sm.note(told.SMPct.Or(unknown))
		f.watts.note(told.Drawn().Or(unknown))
		if f.waitScale > 0 {
			f.wait.note(told.EngineWaitPct.Or(unknown))
		}
	}
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
	worth := p.Tiers.Device*float64(device) + p.Tiers.Host*float64(host-device) + p.Tiers.Disk*float64(disk-host)
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
	used := f.of(c)
	if f.sm.n > 0 {
		used = max(used, f.sm.of(c.told().SMPct.Or(unknown))/100)
	}
	if f.wait.n > 0 {
		used = max(used, f.waitScale*f.wait.apart(c.told().EngineWaitPct.Or(unknown)))
	}
	if f.resent.n > 0 {
		used = max(used, f.resentScale*f.resent.apart(float64(c.Retransmits)))
	}
	return min(used, 1)
}

// coolness returns 1 - norm_watts. coolness returns 0 for every node when none reports its power.
func (f *fleet) coolness(c *Candidate) float64 {
	if f.watts.best == 0 {
		return 0
	}
	return 1 - f.watts.relative(c.told().Drawn().Or(unknown))
}

func (f *fleet) capacity(c *Candidate) float64 {
	free := 0.0
	if f.freeMax > 0 {
		free = f.free(c) / f.freeMax
	}
	return (f.vram.relative(float64(c.VRAM)) + f.throughput.relative(float64(c.Throughput)) + free) / 3
}

func (p *ScoreSettings) total(c *Candidate, f *fleet, promptBlocks int) float64 {
	w := &p.Weights
	reuse := p.overlap(c, promptBlocks) - w.Pending*waiting(c, promptBlocks)
	return w.KV*reuse + w.Load*(1-f.util(c)) + w.Power*f.coolness(c) + w.Capacity*f.capacity(c)
}

func (p *ScoreSettings) pick(s *Situation, e *Explanation) int {
	f := p.survey(s.Candidates)
	if e != nil {
		p.explain(s, &f, e)
	}
	if f.takers == 0 {
		return -1
	}
	best, top, second := p.best(s, &f)
	if second < top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("highest score %.4f of %d candidates", top, f.takers)
		}
		return best
	}
	if home := s.Home - 1; home >= 0 && s.Scratch.standings[home].total >= top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("its session is there, and its score is within %g of the best", p.Epsilon)
		}
		return home
	}
	pick, tied, keyed := s.breakTie(top - p.Epsilon)
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
	}
}

// standing is a candidate's total, or -Inf for a node that may not be picked, and its IDHash.
type standing struct {
	total float64
	id    uint64
}

// best returns the first candidate with the highest total, that total, and the next highest. best
// leaves the standings of all candidates in s.
func (p *ScoreSettings) best(s *Situation, f *fleet) (best int, top, second float64) {
	s.Scratch.standings = slices.Grow(s.Scratch.standings[:0], len(s.Candidates))[:len(s.Candidates)]
	best, top, second = -1, math.Inf(-1), math.Inf(-1)
	for i := range s.Candidates {
		c, t := &s.Candidates[i], math.Inf(-1)
		if c.room() {
			t = p.total(c, f, s.Blocks)
		}
		s.Scratch.standings[i] = standing{t, c.IDHash}
		if t > top {
			best, top, second = i, t, top
		} else if t > second {
			second = t
		}
	}
	return best, top, second
}

// breakTie returns the winner among the candidates with a total of at least least, and their
// number. At least two candidates have that total. Rendezvous hashing sends equal keys to the same
// node, in every router, while that node is among the candidates. Without a key the draw is
// uniform.
func (s *Situation) breakTie(least float64) (winner, tied int, keyed bool) {
	key := s.Random
	if s.Key != nil {
		if k := s.Key.RendezvousKey(); k != 0 {
			key, keyed = mix(k), true
		}
	}
	high := uint64(0)
	for i, n := range s.Scratch.standings {
		if n.total < least {
			continue
		}
		lot := key + uint64(i)
		if keyed {
			lot = n.id ^ key
		}
		if lot = mix(lot); tied == 0 || lot > high {
			winner, high = i, lot
		}
		tied++
	}
	return winner, tied, keyed
}
