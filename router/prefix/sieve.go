package prefix

import (
	"math/bits"
	"sync/atomic"
)

// sieve tells, from one word, which of all nodes may have a group. A fleet of hundreds of nodes has
// most groups at few of them, and a lookup of each node costs a cache miss. A word stands for many
// groups, and a bit of it for every 64th node, so a set bit is no proof. Bits of removed entries
// stay until the next sweep, which makes a new sieve.
//
// Readers take no lock. Writers hold Index.mu.
type sieve struct {
	words atomic.Pointer[[]atomic.Uint64]
	next  []atomic.Uint64 // the new sieve while a sweep fills it, else nil
}

// sieveWords is the number of words for each bucket of the table.
const sieveWords = 2

func (s *sieve) init(buckets int) {
	words := make([]atomic.Uint64, sieveWords*buckets)
	s.words.Store(&words)
}

// word returns the place of a key's word. The place depends on the part of the leader's digest that
// the key has, so a sweep finds the place without the digest.
func word(words []atomic.Uint64, key uint64) *atomic.Uint64 {
	at, _ := bits.Mul64((key>>placeBits)*0x9e3779b97f4a7c15, uint64(len(words)))
	return &words[at]
}

// nodesOf returns the bits of the nodes that may have the group with this leader.
func (s *sieve) nodesOf(leader uint64) uint64 {
	return word(*s.words.Load(), leader<<placeBits).Load()
}

// bit returns the bit of a node.
func bit(place uint32) uint64 { return 1 << (place % 64) }

// add notes an entry.
func (s *sieve) add(key uint64) {
	set(*s.words.Load(), key)
	if s.next != nil {
		set(s.next, key)
	}
}

func set(words []atomic.Uint64, key uint64) {
	w, b := word(words, key), bit(placeOf(key))
	if old := w.Load(); old&b == 0 {
		w.Store(old | b)
	}
}

// blank returns the words of an empty sieve. The caller need not hold Index.mu.
func (s *sieve) blank() []atomic.Uint64 { return make([]atomic.Uint64, len(*s.words.Load())) }

// renew begins a new sieve with blank words. The caller adds every entry that stays.
func (s *sieve) renew(words []atomic.Uint64) { s.next = words }

// keep adds an entry that stays to the new sieve.
func (s *sieve) keep(key uint64) { set(s.next, key) }

// done puts the new sieve in force. complete is false if the caller has not seen every entry.
func (s *sieve) done(complete bool) {
	if words := s.next; complete {
		s.words.Store(&words)
	}
	s.next = nil
}
