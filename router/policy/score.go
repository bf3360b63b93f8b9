package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/kv/block"
)

// fleet holds the measures for a score, over all candidates, full ones included.
type fleet struct {
	occupancy
	sm, watts, vram, throughput, wait, resent figure
	waitScale, resentScale                    float64 // full use per EngineWaitPct, Retransmits; 0: not counted
	signals                                   bool    // sm, wait or resent is known of a node
	takers                                    int     // candidates that may be picked
}

// figure sums up the known values of a measurement.
type figure struct {
	sum, best float64
	n         int
}

func (f *figure) note(v float64) {
	if !known(v) {
		return
	}
	f.n++
	f.sum += v
	if v > f.best { // the built-in max takes longer
		f.best = v
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
	var f fleet
	if p.RunDelayMs > 0 {
		f.waitScale = 10 / p.RunDelayMs // RunDelayMs is in ms of each second; 1 % of a second is 10 ms
	}
	if p.RetransmitPct > 0 {
		f.resentScale = 100 / p.RetransmitPct
	}
	counts := newCensus(cands)
	for i := range cands {
		c := &cands[i]
		counts.add(c.busy(), c.slots())
		if c.Room() {
			f.takers++
		}
		f.vram.note(float64(c.VRAM))
		f.throughput.note(float64(c.Throughput))
		if c.Load != nil {
			f.note(c.Load)
		}
		if f.resentScale > 0 {
			f.resent.note(float64(c.Retransmits))
		}
	}
	f.occupancy = counts.occupancy(cands)
	f.signals = f.sm.n+f.wait.n+f.resent.n > 0
	return f
}

// note adds the figures of a node's load.
func (f *fleet) note(l *load.Load) {
	f.sm.note(l.SMPct.Or(unknown))
	f.watts.note(l.Drawn().Or(unknown))
	if f.waitScale > 0 {
		f.wait.note(l.EngineWaitPct.Or(unknown))
	}
}

// unknown stands for an unknown figure.
const unknown = -1

// known returns false for NaN, infinities and negative values.
func known(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }

// overlap returns the worth of the blocks that the node has, as a share of the prompt.
func (p *ScoreSettings) overlap(c *Candidate, promptBlocks int) float64 {
	device := max(c.Matched, c.Coming, 0)
	host := max(c.Host, device)
	disk := max(c.Disk, host)
	shared := max(c.SharedCache, disk)
	if promptBlocks <= 0 {
		return 0
	}
	worth := p.Tiers.Device * float64(device) * float64(1+c.Experts)
	if shared > device {
		onDisk, elsewhere := p.Tiers.beyond(c)
		worth += p.Tiers.Host*float64(host-device) + onDisk*float64(disk-host) + elsewhere*float64(shared-disk)
	}
	return min(worth/float64(promptBlocks), 1)
}

// These constants bound the waiting prefill, in blocks and in prompts.
const (
	promptLeast = 64
	waitingMost = 4
)

// waiting returns the prefill that waits at the node, in whole blocks. Its unit is one prompt of
// this prompt's size.
func waiting(c *Candidate, promptBlocks int) float64 {
	blocks := max(c.PrefillTokens, 0) / block.Tokens
	return min(float64(blocks)/float64(max(promptBlocks, promptLeast)), waitingMost)
}

// signalled returns the node's use, 0 to 1. used is the share of its slots.
func (f *fleet) signalled(c *Candidate, used float64) float64 {
	if f.sm.n > 0 {
		used = max(used, f.sm.of(c.told().SMPct.Or(unknown))/100)
	}
	if f.wait.n > 0 {
		used = max(used, f.waitScale*f.wait.apart(c.told().EngineWaitPct.Or(unknown)))
	}
	if f.resent.n > 0 {
		used = max(used, f.resentScale*f.resent.apart(float64(c.Retransmits)))
	}
	return used
}

// coolness returns 1 - norm_watts. coolness returns 0 for every node when none reports its power.
func (f *fleet) coolness(c *Candidate) float64 {
	return 1 - f.watts.of(c.told().Drawn().Or(unknown))/f.watts.best
}

// usesPrefixes says whether the first term of a total can differ from 0. The waiting prefill in it
// is in uncached blocks. Without that term prompts have no key for ties either.
func (p *ScoreSettings) usesPrefixes() bool {
	return p.Weights.KV > 0 && (p.Tiers.count() || p.Weights.Pending > 0)
}

// total returns the score of one candidate, and writes its terms into t, unless t is nil.
func (p *ScoreSettings) total(c *Candidate, f *fleet, promptBlocks int, t *Terms) (total float64) {
	overlap, waits, power, capacity := 0.0, 0.0, 0.0, 0.0
	if c.Matched|c.Coming|c.Host|c.Disk|c.SharedCache != 0 {
		overlap = p.overlap(c, promptBlocks)
	}
	if c.PrefillTokens > 0 {
		waits = waiting(c, promptBlocks)
	}
	busy, slots := f.seats(c)
	used := f.used(busy, slots)
	if f.signals {
		used = f.signalled(c, used)
	}
	if used > 1 {
		used = 1
	}
	if f.watts.best > 0 {
		power = f.coolness(c)
	}
	if f.vram.best > 0 {
		capacity = f.vram.of(float64(c.VRAM)) / f.vram.best
	}
	if f.throughput.best > 0 {
		capacity += f.throughput.of(float64(c.Throughput)) / f.throughput.best
	}
	if slots > busy {
		capacity += (slots - busy) / f.freeMost
	}
	capacity /= 3
	w := &p.Weights
	total = w.KV*(overlap-w.Pending*waits) + w.Load*(1-used) + w.Power*power + w.Capacity*capacity
	if c.Loads {
		total -= w.Adapter
	}
	if t != nil {
		t.Overlap, t.Waiting, t.Load, t.Power, t.Capacity, t.Total = overlap, waits, 1-used, power, capacity, total
		_, t.Elsewhere = p.Tiers.beyond(c)
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
	best, top, second := p.best(s, &f)
	if second < top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("highest score %.4f of %d candidates", top, f.takers)
		}
		return best
	}
	if home := s.Home - 1; home >= 0 && s.Scratch[home].total >= top-p.Epsilon {
		if e != nil {
			e.Why = fmt.Sprintf("its session is there, and its score is within %g of the best", p.Epsilon)
		}
		return home
	}
	pick, tied, keyed := s.breakTie(top - p.Epsilon)
	if e != nil {
		how := "at random, the prompt has no key"
		if keyed {
			how = "by rendezvous of node id and session or prompt"
		}
		e.Why = fmt.Sprintf("%d candidates within %g of the best score %.4f, chosen %s", tied, p.Epsilon, top, how)
	}
	return pick
}

// explain fills in every term of every candidate.
func (p *ScoreSettings) explain(s *Situation, f *fleet, e *Explanation) {
	for i := range e.Terms {
		t := &e.Terms[i]
		p.total(&s.Candidates[i], f, s.Blocks, t)
		t.Formula = p.formula(t, s.Blocks, s.Candidates[i].Loads)
	}
}

// formula returns the score as a sum of the weighted terms. loads says that the node must load the
// request's adapter.
func (p *ScoreSettings) formula(t *Terms, promptBlocks int, loads bool) string {
	w := &p.Weights
	term := func(weight, of float64) string { return decimal(weight) + " * " + decimal(of) }
	sum := decimals(t.Total, 4) + " = " + decimal(w.KV) + " * (" + decimal(t.Overlap) + " - " +
		term(w.Pending, t.Waiting) + ") + " + term(w.Load, t.Load) + " + " + term(w.Power, t.Power) + " + " +
		term(w.Capacity, t.Capacity)
	if loads {
		sum += " - " + decimal(w.Adapter)
	}
	return sum + cachedBlocks(t.Overlap*float64(promptBlocks), 0, t.Elsewhere)
}

// standing is a candidate's total, or -Inf for a node that may not be picked, and its IDHash.
type standing struct {
	total float64
	id    uint64
}

// best returns the first candidate with the highest total, that total, and the next highest. best
// leaves the standings of all candidates in s.
func (p *ScoreSettings) best(s *Situation, f *fleet) (best int, top, second float64) {
	s.Scratch = slices.Grow(s.Scratch[:0], len(s.Candidates))[:len(s.Candidates)]
	best, top, second = -1, math.Inf(-1), math.Inf(-1)
	for i := range s.Candidates {
		c, t := &s.Candidates[i], math.Inf(-1)
		if c.Room() {
			t = p.total(c, f, s.Blocks, nil)
		}
		s.Scratch[i] = standing{t, c.IDHash}
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
	for i, n := range s.Scratch {
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
