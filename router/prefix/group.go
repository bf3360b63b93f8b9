package prefix

import "math/bits"

// groupBlocks is how many consecutive blocks of a prompt share one entry of the
// index. The entry is known by the digest of the group's first block, its leader,
// and says which of the others are there by four bits of each one's key, its tag: as a
// digest covers everything before it, a node that holds the leader of the next
// group holds all of this one. Of the prompts that part within a group one in fourteen
// is taken to go on with the other for a block.
const (
	groupBlocks = 16
	tagBits     = 4
)

// tags are those of the blocks of a group behind its leader, in the order of the prompt
// from the lowest bits on; 0 = no block, and so are the topmost bits.
type tags uint64

// tag is that of the block with this key.
func tag(key uint64) tags { return tags(max(key>>(64-tagBits), 1)) }

// shared is how many leading blocks two groups with the same leader have in common,
// at least 1, if one of them has count blocks.
func (t tags) shared(other tags, count int) int {
	return min(1+bits.TrailingZeros64(uint64(t^other))/tagBits, count)
}

// first keeps the tags of the first count blocks, the leader among them.
func (t tags) first(count int) tags { return t & (1<<(tagBits*(count-1)) - 1) }

// blocks is the number of blocks in a group, its leader included.
func (t tags) blocks() int { return 1 + (bits.Len64(uint64(t))+tagBits-1)/tagBits }

// groups is the number of groups of the prompt; the last one may be unfinished.
func (c *Chain) groups() int { return (c.blocks + groupBlocks - 1) / groupBlocks }

// leader is the key of the first block of group g; it hashes the chain as far as that.
func (c *Chain) leader(g int) uint64 { return c.Key(g * groupBlocks) }

// count is the number of blocks in group g.
func (c *Chain) count(g int) int { return min(groupBlocks, c.blocks-g*groupBlocks) }

// tags hashes the chain to the end of group g. Those of groups that are complete are kept.
func (c *Chain) tags(g int) tags {
	for g >= len(c.tagged) && (len(c.tagged)+1)*groupBlocks <= c.blocks {
		c.tagged = append(c.tagged, c.makeTags(len(c.tagged)))
	}
	if g < len(c.tagged) {
		return c.tagged[g]
	}
	return c.makeTags(g)
}

func (c *Chain) makeTags(g int) tags {
	first, count := g*groupBlocks, c.count(g)
	c.Key(first + count - 1)
	var t tags
	for i, key := range c.keys[first+1 : first+count] {
		t |= tag(key) << (tagBits * i)
	}
	return t
}
