package ram

// chains are the buckets of a hash table, each the first element of a list.
//
// They grow by linear hashing: one chain is split whenever there are more elements than chains, so
// that nobody waits longer than for one split. A chain's part of a scan is the hash modulo the
// first number of chains, which never changes.
type chains[T ~uint32] struct {
	heads chunked[T]
	mask  uint64 // for the chains before the present round of splits
}

// newChains makes n chains, a power of two.
func newChains[T ~uint32](n uint32) chains[T] {
	c := chains[T]{mask: uint64(n) - 1}
	for range n {
		c.heads.grow()
	}
	return c
}

// head begins the chain for a hash.
func (c *chains[T]) head(h uint64) *T {
	i := h & (2*c.mask + 1)
	if i >= uint64(c.heads.n) {
		i = h & c.mask
	}
	return c.heads.at(uint32(i))
}

// begin adds a chain and returns a list of elements that have lost their chain. The caller moves
// each to the chain that head returns.
func (c *chains[T]) begin() T {
	fresh := c.heads.grow()
	old := c.heads.at(fresh - uint32(c.mask) - 1)
	first := *old
	*old = 0
	if uint64(c.heads.n) == 2*(c.mask+1) {
		c.mask = 2*c.mask + 1
	}
	return first
}
