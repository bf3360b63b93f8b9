package books

import (
	"math/bits"
	"sync/atomic"
)

// Sharing counts the active prompts of a fleet by their beginnings. Prompts of different beginnings
// may share a place, so a count may be too high. Sharing is safe for concurrent use.
type Sharing [1 << 14]atomic.Int32

// Beginning returns the number of blocks of a prompt's longest beginning that Sharing counts: more
// than half of them.
func Beginning(blocks int) int {
	if blocks == 0 {
		return 0
	}
	return 1 << (bits.Len(uint(blocks)) - 1)
}

// note counts n more prompts with these keys, at each beginning whose length is a power of two.
func (s *Sharing) note(keys []uint64, n int32) {
	for blocks := 1; blocks <= len(keys); blocks *= 2 {
		s.place(keys[blocks-1]).Add(n)
	}
}

// Sharers returns how many active prompts have the Beginning of a prompt with these keys.
func (s *Sharing) Sharers(keys []uint64) int {
	if len(keys) == 0 {
		return 0
	}
	return int(s.place(keys[Beginning(len(keys))-1]).Load())
}

func (s *Sharing) place(key uint64) *atomic.Int32 { return &s[key%uint64(len(s))] }
