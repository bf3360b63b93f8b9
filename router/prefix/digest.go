// Package prefix predicts which node holds which part of a prompt.
//
// A prompt is cut into blocks of 16 tokens. Each block has a digest that covers everything before
// it (Chain). The Index records which block was sent to which node. From these records the Index
// predicts how much of a new prompt each node has in its KV cache (Match). The engines' reports
// correct the predictions (Observe).
package prefix

import (
	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"

	"github.com/cognitora/dataplane/kv/block"
)

// Digest identifies a block together with all blocks before it.
type Digest = [32]byte

const (
	// BlockTokens is the number of tokens of a block.
	BlockTokens = block.Tokens
	// BlockBytes is the size of a block: its token ids as little-endian uint32.
	// With the default tokenizer a token is 4 bytes of prompt text, so a block
	// is 64 bytes of text.
	BlockBytes = 64
)

// seedDomain begins the seed of every chain. Change seedDomain with the digest scheme, so that old
// and new digests never match.
const seedDomain = "cognitora.seq.v1\x00"

// Seed returns the digest before the first block, as block.Seed does. Prompts for different models,
// adapters or tenant salts share no digest. Seed does not allocate while the inputs together are
// below 1000 bytes.
func Seed[Salt string | []byte](model, adapter string, salt Salt) Digest {
	if len(seedDomain)+len(model)+len(adapter)+len(salt)+2 > guts.ChunkSize {
		return blake3.Sum256([]byte(seedDomain + model + "\x00" + adapter + "\x00" + string(salt)))
	}
	var scratch [guts.ChunkSize]byte
	b := append(scratch[:0], seedDomain...)
	b = append(b, model...)
	b = append(b, 0)
	b = append(b, adapter...)
	b = append(b, 0)
	b = append(b, salt...)
	n := guts.CompressChunk(b, &guts.IV, 0, 0)
	n.Flags |= guts.FlagRoot
	return toDigest(guts.ChainingValue(n))
}
