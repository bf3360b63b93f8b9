package prefix

import (
	"math/bits"
	"time"
)

const (
	// sweepEvery bounds the age of beliefs that no lookup uses any more.
	sweepEvery = time.Hour
	// sweepBatch is the number of buckets swept per hold of the lock.
	sweepBatch = 64
)

// sweeper owns the goroutine that removes surplus entries, old entries and the entries of departed
// nodes.
type sweeper struct {
	wake chan struct{} // capacity 1; a token means that a sweep is due
	stop chan struct{}
	done chan struct{}
}

func (x *Index) startSweeper() {
	x.sweeper = sweeper{
		wake: make(chan struct{}, 1),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	go x.sweepLoop()
}

// Close stops the pruning and waits for its end. The index may still be read.
func (x *Index) Close() {
	if x.o.Inline {
		return
	}
	close(x.sweeper.stop)
	<-x.sweeper.done
}

// wake starts a sweep: soon, or at once if the index has no goroutine for sweeps.
func (x *Index) wake() {
	if x.o.Inline {
		x.sweep()
		return
	}
	select {
	case x.sweeper.wake <- struct{}{}:
	default:
	}
}

func (x *Index) sweepLoop() {
	defer close(x.sweeper.done)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-x.sweeper.wake:
		case <-tick.C:
		case <-x.sweeper.stop:
			return
		}
		x.sweep()
	}
}

// sweep walks through the table once, in steps that hold the lock briefly.
func (x *Index) sweep() {
	s := sweep{x: x, least: maxAge + 1}
	s.now, _ = x.clock.nowStamp()
	s.takeLeft()
	if x.table.full() {
		s.planPrune()
	}
	blank := x.table.sieve.blank() // before the lock, because clearing large memory takes long
	x.renewSieve(func() { x.table.sieve.renew(blank) })
	for from := 0; from < len(x.table.buckets); from += sweepBatch {
		if x.closing() {
			x.renewSieve(func() { x.table.sieve.done(false) })
			return
		}
		s.step(from, min(from+sweepBatch, len(x.table.buckets)))
	}
	x.renewSieve(func() { x.table.sieve.done(true) })
	s.freeLeft()
}

// renewSieve does a step of the sieve's renewal.
func (x *Index) renewSieve(step func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	step()
}

func (x *Index) closing() bool {
	select {
	case <-x.sweeper.stop:
		return true
	default:
		return false
	}
}

// sweep is one walk over the table.
type sweep struct {
	x      *Index
	now    stamp
	left   []uint32              // places whose beliefs are removed
	isLeft [maxNodes / 64]uint64 // left as a bit set
	least  int32                 // ms: a younger entry stays, unless its node has left
	prune  bool
	bin    int // entries of an older age bin are removed
	quota  int // entries of bin are removed until so many blocks are gone
}

func (s *sweep) takeLeft() {
	s.x.mu.Lock()
	s.left, s.x.left = s.x.left, nil
	s.x.mu.Unlock()
	for _, p := range s.left {
		s.isLeft[p/64] |= 1 << (p % 64)
	}
}

// freeLeft frees the departed nodes' places, which no entry refers to any more.
func (s *sweep) freeLeft() {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	for _, p := range s.left {
		s.x.free[p/64] |= 1 << (p % 64)
	}
}

func (s *sweep) step(from, to int) {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	for i := from; i < to; i++ {
		s.x.table.buckets[i].beliefs[0].Load() // loads several buckets, so that their cache misses overlap
	}
	for i := from; i < to; i++ {
		b := &s.x.table.buckets[i]
		old := b.old(s.now, s.least)
		if len(s.left) > 0 {
			old = 1<<entriesPerBucket - 1
		}
		for ; old != 0; old &= old - 1 {
			k := bits.TrailingZeros8(old)
			if key := b.keys[k].Load(); key != 0 && s.goes(placeOf(key), b.touched(k), b.blocks(k)) {
				s.x.table.clear(b, k)
			}
		}
		for k := range b.keys {
			if key := b.keys[k].Load(); key != 0 {
				s.x.table.sieve.keep(key)
			}
		}
	}
}

func (s *sweep) goes(place uint32, touched stamp, blocks int) bool {
	age := since(s.now, touched)
	if s.isLeft[place/64]>>(place%64)&1 == 1 || age > maxAge {
		return true
	}
	if !s.prune {
		return false
	}
	bin := ageBin(age)
	if bin == s.bin && s.quota > 0 {
		s.quota -= blocks
		return true
	}
	return bin > s.bin
}

// ageBins is the size of an age histogram with eight bins per power of two.
const ageBins = 32 * 8

func ageBin(age int32) int {
	if age < 8 {
		return int(max(age, 0))
	}
	octave := bits.Len32(uint32(age)) - 4
	return octave*8 + int(age>>octave)
}

// leastAge returns the lowest age in a bin. Entries touched since the sweep began are in the first
// bin.
func leastAge(bin int) int32 {
	switch {
	case bin == 0:
		return -stampRange
	case bin < 16:
		return int32(bin)
	}
	return int32(bin%8+8) << (bin/8 - 1)
}

// planEvery is the sampling interval of planPrune, which looks at one bucket in planEvery. The
// bins' sizes are therefore estimates. The next pruning corrects the error.
const planEvery = 8

// planPrune finds, without the lock, the age above which entries are removed.
func (s *sweep) planPrune() {
	var histogram [ageBins]int
	every := planEvery
	if len(s.x.table.buckets) < 1024*planEvery {
		every = 1
	}
	for i := 0; i < len(s.x.table.buckets); i += every {
		b := &s.x.table.buckets[i]
		for used := b.old(s.now, leastAge(0)); used != 0; used &= used - 1 {
			k := bits.TrailingZeros8(used)
			histogram[ageBin(since(s.now, b.touched(k)))] += every * b.blocks(k)
		}
	}
	surplus := s.x.Len() - int(s.x.o.PruneTo*float64(s.x.o.MaxBlocks))
	for bin := ageBins - 1; bin >= 0 && surplus > 0; bin-- {
		s.prune, s.bin, s.quota, s.least = true, bin, min(surplus, histogram[bin]), leastAge(bin)
		surplus -= histogram[bin]
	}
}
