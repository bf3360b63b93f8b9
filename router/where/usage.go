package where

import (
	"math"
	"sync/atomic"

	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/prefix"
)

// Usage is how far a node's engine uses the blocks outside of its own memory: the share of these
// blocks that the engine reported as cached, by tier. An engine without a connector computes them
// although its host has them. The zero value counts all blocks. Usage is safe for concurrent use
// and has a fixed size.
type Usage struct{ host, disk, shared share }

// share is a decayed share of believed blocks that were found. It is one word, of two float32: the
// sum of the believed blocks, and that of the found ones.
type share struct{ sums atomic.Uint64 }

const (
	// usagePrior is the number of found blocks that a share begins with, so that few blocks say
	// little.
	usagePrior = 16
	// usageKeep is what an answer leaves of the sums of earlier ones. About the last 16 answers
	// count.
	usageKeep = 15.0 / 16
)

func unpack(word uint64) (believed, found float32) {
	return math.Float32frombits(uint32(word >> 32)), math.Float32frombits(uint32(word))
}

func pack(believed, found float32) uint64 {
	return uint64(math.Float32bits(believed))<<32 | uint64(math.Float32bits(found))
}

// ratio returns the share, from 0 to 1.
func (s *share) ratio() float64 {
	word := s.sums.Load()
	if word == 0 {
		return 1
	}
	believed, found := unpack(word)
	return float64(found+usagePrior) / float64(believed+usagePrior)
}

// add adds an answer's blocks.
func (s *share) add(believed, found float32) {
	for {
		was := s.sums.Load()
		b, f := unpack(was)
		if s.sums.CompareAndSwap(was, pack(b*usageKeep+believed, f*usageKeep+found)) {
			return
		}
	}
}

// of returns the blocks of a tier that count.
func (s *share) of(blocks int32) int32 {
	if blocks <= 0 || s.sums.Load() == 0 {
		return blocks
	}
	return int32(float64(blocks)*s.ratio() + 0.5)
}

// Apply returns how far the engine is believed to use what a node reaches.
func (u *Usage) Apply(r holdings.Reach) holdings.Reach {
	if r.Shared <= r.Device {
		return r
	}
	near := max(r.Device, 0)
	host, disk, shared := r.Host-near, r.Disk-r.Host, r.Shared-r.Disk
	r.Host = near + u.host.of(host)
	r.Disk = r.Host + u.disk.of(disk)
	r.Shared = r.Disk + u.shared.of(shared)
	return r
}

// Ratios returns the shares of the blocks in the host's RAM, on its SSD and on other hosts that the
// engine used, each from 0 to 1.
func (u *Usage) Ratios() (host, disk, shared float64) {
	return u.host.ratio(), u.disk.ratio(), u.shared.ratio()
}

// Learn compares what a node was believed to reach with the tokens that its engine found cached.
// device is the number of leading blocks that were believed to be in the engine's own memory.
// engineBlock is the number of tokens of the engine's blocks; 0 means 16. A tier says nothing once
// blocks before it were missing. Learn allocates nothing.
func (u *Usage) Learn(r holdings.Reach, device int, cached int64, engineBlock int) {
	slack := int32(max(engineBlock, prefix.BlockTokens)/prefix.BlockTokens) + 1 // the last token is always computed
	found := int32(min(max(cached, 0)/prefix.BlockTokens, math.MaxInt32/2))
	from := max(r.Device, int32(device), 0)
	for _, tier := range [...]struct {
		to int32
		at *share
	}{{r.Host, &u.host}, {r.Disk, &u.disk}, {r.Shared, &u.shared}} {
		if tier.to <= from {
			continue
		}
		all := found+slack >= tier.to
		hit := min(max(found, from), tier.to) - from
		if all {
			hit = tier.to - from
		}
		tier.at.add(float32(tier.to-from), float32(hit))
		if from = tier.to; !all {
			return
		}
	}
}
