// Package evict has eviction policies as pure data structures, and replays traces of block accesses
// against them. So an operator can size tiers, and the policy of the RAM tier can be compared with
// published ones.
//
// All blocks count the same, whatever their length. A missing block is always fetched or computed,
// and then inserted, as engines do.
package evict

// Policy is a cache with room for a number of blocks. A Policy has only their keys. Keys are the
// dense numbers of an accesses.Trace. A policy is not safe for concurrent use.
type Policy interface {
	// Request uses the blocks of one prompt in order and inserts the missing ones. Request returns
	// how many leading blocks were there, because an engine can load only these. It also returns
	// how many blocks were there in total.
	Request(keys []uint32) (leading, hits int)
	// Store inserts blocks that an engine has computed. Store does not mark blocks as used that are
	// there already. Store does not count as an access.
	Store(keys []uint32)
	// Len returns the number of held blocks, which is never above the capacity.
	Len() int
}

// Maker makes a policy for a trace with a number of distinct keys.
type Maker struct {
	Name string
	New  func(capacity, keys int) Policy
}

// Ours is the name of the RAM tier's policy among Makers.
const Ours = "leaf-arc"

// Makers returns every policy, first that of the RAM tier. Each policy takes the blocks of a
// request in order, as its authors intended, except the two policies that know leaves.
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

// single is a policy for single keys, without prompts.
type single interface {
	access(key uint32) (hit bool) // inserts a missing key
	has(key uint32) bool
	len() int
}

// inOrder makes a Policy from a policy for single keys.
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
