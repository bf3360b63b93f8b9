package residency

// GroupBlocks is the number of consecutive blocks of a prompt in a group. Blocks i to i+15 are a
// group if i is a multiple of 16. The first block of a group is the group's leader.
const GroupBlocks = 16

// Key identifies a block in the index. From the top a Key has 32 bits of the leader of the block's
// group, 28 bits of the block, and the block's place in the group. Neither half is ever 0.
// Different blocks of an index need different keys. With digests that cover everything before a
// block, 10,000 blocks behind the same block have a collision in one case of 10,000.
type Key uint64

const (
	tagBits   = 32
	placeBits = 4
	tagMask   = 1<<tagBits - 1
)

// KeyOf returns the key of block i of a prompt. leader and own are the first 8 bytes of two
// digests: of the group's leader, block i - i % GroupBlocks, and of the block itself.
func KeyOf(leader, own uint64, i int) Key {
	return Key(max(leader>>tagBits, 1)<<tagBits | max(own<<placeBits&tagMask, GroupBlocks) | uint64(i)%GroupBlocks)
}

// leader returns the half common to all blocks of the group.
func (k Key) leader() uint64 { return uint64(k) &^ tagMask }

// tag returns the half of the block itself, with its place.
func (k Key) tag() uint32 { return uint32(k) }

func (k Key) place() int { return int(k % GroupBlocks) }

// run returns how many of the first keys are consecutive blocks of one group, at least 1.
func run(keys []Key) int {
	n := 1
	for n < len(keys) && keys[n].leader() == keys[0].leader() && keys[n].place() == keys[0].place()+n {
		n++
	}
	return n
}
