package modes

import (
	"math"
	"math/rand/v2"
)

// dice draws situations. Numbers have two decimals, so that they are short in JSON.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 0))} }

// chance returns true with probability p.
func (d dice) chance(p float64) bool { return d.Float64() < p }

// upTo returns a number from 0 to most, both included.
func (d dice) upTo(most int) int { return d.IntN(most + 1) }

// between returns a number from lo to hi.
func (d dice) between(lo, hi float64) float64 { return math.Round((lo+d.Float64()*(hi-lo))*100) / 100 }

// magnitude returns a number from 1 to most. Each order of magnitude is as likely as the others.
func (d dice) magnitude(most float64) int { return int(math.Exp(d.Float64() * math.Log(most))) }

// some returns nil, one of the given values or a number from 0 to most.
func (d dice) some(most float64, values ...float64) *float64 {
	switch n := d.IntN(len(values) + 5); {
	case n < 3:
		return nil
	case n < 5:
		return new(d.between(0, most))
	default:
		return &values[n-5]
	}
}

func (d dice) switched() *bool {
	if d.chance(0.6) {
		return nil
	}
	return new(d.chance(0.5))
}

var labels = []string{"rack", "zone", "gpu", "spot"}

func (d dice) situation() *situation {
	s := &situation{Leg: "decode", BlockSize: 16 << d.IntN(3), Config: d.config()}
	if d.chance(0.4) {
		s.Leg = "prefill"
	}
	s.Tokens = d.tokens(s.BlockSize)
	if d.chance(0.4) {
		s.Override = d.override()
	}
	if d.chance(0.3) {
		s.Shared = d.ranges(s.complete())
	}
	if d.chance(0.4) {
		s.Preferred = map[string]float32{}
		for _, label := range labels {
			if d.chance(0.6) {
				s.Preferred[label] = float32(d.between(-2, 2))
			}
		}
	}
	s.Workers = d.workers(s)
	return s
}

// tokens returns the length of a prompt. It is 0, less than a block, whole blocks, or any other.
func (d dice) tokens(block int) int {
	switch n := d.magnitude(32 << 10); d.IntN(20) {
	case 0:
		return 0
	case 1:
		return d.upTo(block)
	case 2, 3, 4, 5, 6:
		return (n/block + 1) * block
	default:
		return n
	}
}

func (d dice) config() config {
	c := config{
		Credit: d.some(2, 0, 1), Decay: d.some(3, 0, 0.5, 1), PrefillScale: d.some(3, 0, 1),
		RequestWeight: d.some(5, 1), HostWeight: d.some(1, 0, 1), DiskWeight: d.some(1, 0, 1),
		SharedMultiplier: d.some(1, 0, 1),
		TrackPrefill:     d.switched(), AssumeReuse: d.switched(), TrackBlocks: d.switched(),
	}
	if d.chance(0.2) {
		c.OverlapWeight = d.some(3, 0, 0, 0, 1)
	}
	if d.chance(0.3) {
		c.SharedType = "hicache"
	}
	return c
}

func (d dice) override() *override {
	o := &override{
		Credit: d.some(2, 0, 1), PrefillScale: d.some(3, 0, 1), SharedMultiplier: d.some(1, 0, 1),
		TrackPrefill: d.switched(), AssumeReuse: d.switched(),
	}
	if d.chance(0.3) {
		o.OverlapWeight = d.some(3, 0, 0, 0, 1)
	}
	return o
}

// ranges returns some of the positions of n blocks.
func (d dice) ranges(n int) (ranges [][2]int) {
	for at := 0; at < n && len(ranges) < 3; {
		from := at + d.upTo(n-at-1)
		to := from + 1 + d.upTo(n-from-1)
		ranges, at = append(ranges, [2]int{from, to}), to+1
	}
	return ranges
}

func (d dice) workers(s *situation) []worker {
	n := d.IntN(7) + 2
	if d.chance(0.1) {
		n = 1
	}
	warm, busy, same := d.chance(0.8), d.chance(0.4), d.chance(0.05)
	workers := make([]worker, n)
	for i := range workers {
		workers[i] = d.worker(s, warm, busy)
		if i > 0 && (same || d.chance(0.05)) {
			workers[i] = workers[d.IntN(i)]
		}
	}
	return workers
}

// worker returns one that may have blocks of the prompt if warm, and has prefill to do if busy.
func (d dice) worker(s *situation, warm, busy bool) (w worker) {
	most := s.complete()
	if warm && d.chance(0.7) {
		w.Device = d.part(most)
		w.Host = w.Device + d.part(most-w.Device)
		w.Disk = w.Host + d.part(most-w.Host)
	}
	for _, label := range labels {
		if d.chance(0.3) {
			w.Taints = append(w.Taints, label)
		}
	}
	switch {
	case d.chance(0.05): // unknown
	case busy || d.chance(0.8):
		w.Load = d.load(s, busy)
	default:
		w.Load = &load{}
	}
	return w
}

// part returns nothing, all or some of n.
func (d dice) part(n int) int {
	switch d.IntN(4) {
	case 0:
		return 0
	case 1:
		return n
	default:
		return d.upTo(n)
	}
}

func (d dice) load(s *situation, busy bool) *load {
	l := &load{Requests: d.magnitude(64)}
	if busy || d.chance(0.7) {
		l.PrefillTokens = 1 + d.upTo(3*s.Tokens+100)
	}
	if d.chance(0.3) {
		l.SharedActive = d.part(s.complete())
	}
	l.ActiveBlocks = float64(l.SharedActive + d.upTo(1000))
	if d.chance(0.2) {
		// A half is left out, because the sum of the crate's fractions may be a bit off it.
		l.ActiveBlocks += []float64{0.1, 0.3, 0.4, 0.6, 0.7, 0.9}[d.IntN(6)]
	}
	return l
}
