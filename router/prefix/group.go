package prefix

import "math/bits"

// groupBlocks is the number of consecutive blocks of a prompt that share one index entry. The
// digest of the group's first block, its leader, identifies the entry. For each other block the
// entry has a tag: four bits of the block's key. A digest covers everything before it, so a node
// that holds the leader of the next group holds all of the group before it. When two prompts part
// within a group, tags mistake one block for the other in one case of fourteen.
const (
	groupBlocks = 16
	tagBits     = 4
)

// tags are the tags of a group's blocks behind the leader, from the lowest bits on in the order of
// the prompt. 0 means no block, so the unused top bits are 0.
type tags uint64

// tag returns the tag of the block with this key.
func tag(key uint64) tags { return tags(max(key>>(64-tagBits), 1)) }

// shared returns how many leading blocks two groups with the same leader have in common, at least
// 1. One of the two groups has count blocks.
func (t tags) shared(other tags, count int) int {
	return min(1+bits.TrailingZeros64(uint64(t^other))/tagBits, count)
}

// first keeps the tags of the first count blocks, the leader among them.
func (t tags) first(count int) tags { return t & (1<<(tagBits*(count-1)) - 1) }

// blocks returns the number of blocks in a group, its leader included.
func (t tags) blocks() int { return 1 + (bits.Len64(uint64(t))+tagBits-1)/tagBits }

// groups returns the number of groups of the prompt, an unfinished last one included.
func (c *Chain) groups() int { return (c.blocks + groupBlocks - 1) / groupBlocks }

// leader returns the key of the first block of group g. leader hashes the chain as far as that
// block.
func (c *Chain) leader(g int) uint64 { return c.Key(g * groupBlocks) }

// count returns the number of blocks in group g.
func (c *Chain) count(g int) int { return min(groupBlocks, c.blocks-g*groupBlocks) }

// tags hashes the chain to the end of group g and returns the group's tags. tags keeps the tags of
// complete groups.
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
