package prefix

import (
	"encoding/binary"

	"lukechampine.com/blake3/guts"
)

// words is a digest in the words of the compression function.
type words = [8]uint32

// blockFlags mark a message of one chunk with one block in keyed mode.
const blockFlags = guts.FlagChunkStart | guts.FlagChunkEnd | guts.FlagRoot | guts.FlagKeyedHash

// lowState is the lower half of BLAKE3's state before a block: four words of the
// initial value, a counter of 0, length and flags.
var lowState = [8]uint32{guts.IV[0], guts.IV[1], guts.IV[2], guts.IV[3], 0, 0, BlockBytes, blockFlags}

func hashTextGeneric(digests []words, parent *words, text []byte) {
	n := guts.Node{CV: *parent, BlockLen: BlockBytes, Flags: blockFlags}
	for i := range digests {
		block := text[i*BlockBytes:][:BlockBytes]
		for k := range n.Block {
			n.Block[k] = binary.LittleEndian.Uint32(block[4*k:])
		}
		n.CV = guts.ChainingValue(n)
		digests[i] = n.CV
	}
}

func hashTokensGeneric(digests []words, parent *words, tokens []uint32) {
	n := guts.Node{CV: *parent, BlockLen: BlockBytes, Flags: blockFlags}
	for i := range digests {
		copy(n.Block[:], tokens[i*BlockTokens:][:BlockTokens])
		n.CV = guts.ChainingValue(n)
		digests[i] = n.CV
	}
}

func toDigest(w words) (d Digest) {
	for i, v := range w {
		binary.LittleEndian.PutUint32(d[4*i:], v)
	}
	return d
}

func fromDigest(d *Digest) (w words) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(d[4*i:])
	}
	return w
}
