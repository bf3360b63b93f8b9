// Package evict has eviction policies as pure data structures, and replays
// traces of block accesses against them, so that an operator can size tiers and
// so that the policy of the RAM tier is compared with those that are published.
//
// Blocks count the same whatever their length, and a missing block is always
// fetched or computed and then inserted: that is what engines do.
package evict

// Policy is a cache of so many blocks, of which only the keys exist. Keys are
// the dense numbers of an accesses.Trace. A policy is not safe for concurrent use.
type Policy interface {
	// Request uses the blocks of one prompt in order and inserts what is
	// missing. It returns how many leading ones were there, which is what an
	// engine can load, and how many in all.
	Request(keys []uint32) (leading, hits int)
	// Store inserts blocks that an engine has computed; those that are there
	// are not used by it. It counts as no access.
	Store(keys []uint32)
	// Len is the number of blocks held, never above the capacity.
	Len() int
}

// Maker makes a policy for a trace with so many distinct keys.
type Maker struct {
	Name string
	New  func(capacity, keys int) Policy
}

// Ours is the name of the RAM tier's policy among Makers.
const Ours = "leaf-arc"

// Makers returns every policy, that of the RAM tier first. Each takes the
// blocks of a request in order, as its authors have it, except the two that know leaves.
func Makers() []Maker {
	return []Maker{
		{Ours, func(c, n int) Policy { return newLeafARC(c, n) }},
		{"leaf-lru", func(c, n int) Policy { return newLeafLRU(c, n) }},
		{"lru", func(c, n int) Policy { return &inOrder{newLRU(c, n)} }},
		{"sieve", func(c, n int) Policy { return &inOrder{newSieve(c, n)} }},
		{"s3-fifo", func(c, n int) Policy { return &inOrder{newS3FIFO(c, n)} }},
		{"w-tinylfu", func(c, n int) Policy { return &inOrder{newTinyLFU(c, n)} }},
		{"arc", func(c, n int) Policy { return &inOrder{newARC(c, n)} }},
	}
}

// single is a policy that knows single keys only.
type single interface {
	access(key uint32) (hit bool) // inserts a missing one
	has(key uint32) bool
	len() int
}

// inOrder makes a Policy of one that knows single keys only.
type inOrder struct{ s single }

func (p *inOrder) Request(keys []uint32) (leading, hits int) {
	for i, k := range keys {
		if p.s.access(k) {
			hits++
			if leading == i {
				leading++
			}
		}
	}
	return leading, hits
}

func (p *inOrder) Store(keys []uint32) {
	for _, k := range keys {
		if !p.s.has(k) {
			p.s.access(k)
		}
	}
}

func (p *inOrder) Len() int { return p.s.len() }
