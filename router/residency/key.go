package residency

// GroupBlocks is how many consecutive blocks of a prompt make a group. Blocks i to
// i+15 are one where i is a multiple of 16; the first of them is the group's leader.
const GroupBlocks = 16

// Key is how the index knows a block. From the top: 32 bits of the leader of the block's group, 28
// bits of its own, and its place in the group. Neither half is ever 0. Two blocks of one index that
// are to be told apart need different keys: with digests that cover all that comes before a block,
// 10,000 blocks that follow the same one collide once in 10,000 times.
type Key uint64

const (
	tagBits   = 32
	placeBits = 4
	tagMask   = 1<<tagBits - 1
)

// KeyOf is the key of block i of a prompt, from the first 8 bytes of two digests: that of
// its group's leader, which is block i - i % GroupBlocks, and its own.
func KeyOf(leader, own uint64, i int) Key {
	return Key(max(leader>>tagBits, 1)<<tagBits | max(own<<placeBits&tagMask, GroupBlocks) | uint64(i)%GroupBlocks)
}

// leader is the half that all blocks of the group have.
func (k Key) leader() uint64 { return uint64(k) &^ tagMask }

// tag is the half that is the block's own, with its place.
func (k Key) tag() uint32 { return uint32(k) }

func (k Key) place() int { return int(k % GroupBlocks) }

// run is how many of the first keys are consecutive blocks of one group; at least 1.
func run(keys []Key) int {
	n := 1
	for n < len(keys) && keys[n].leader() == keys[0].leader() && keys[n].place() == keys[0].place()+n {
		n++
	}
	return n
}
