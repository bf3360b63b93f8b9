package prefix

import "slices"

// MaxChain is the most blocks of one prompt that are looked at, a million tokens: one request
// can neither fill the index nor keep more memory than their keys take.
const MaxChain = 1 << 16

// Chain is the sequence of blocks of one prompt, hashed as far as it has been
// asked for. It also carries the scratch space of the Index's calls for this
// request. The zero value is an empty prompt; Reset makes it reusable without
// allocation. A Chain belongs to one goroutine at a time.
type Chain struct {
	text   []byte   // from block base on
	tokens []uint32 // or this
	base   int
	blocks int
	length float64 // of the prompt in blocks, the unfinished last one included

	keys    []uint64  // of the blocks that are known: hashed, or skipped
	last    words     // the digest of the last of them, or the seed
	scratch []words   // hashTo
	walk    []walker  // Match: the candidates still holding everything
	sent    sentState // Record: what was believed of the node at dispatch
}

// Reset makes c the chain of a prompt given as text or, when text is empty, as
// token ids. Both are aliased and must not change until the next Reset, or
// until Record has returned, which finishes the chain.
func (c *Chain) Reset(seed Digest, text []byte, tokens []uint32) {
	c.keys, c.last = c.keys[:0], fromDigest(&seed)
	c.sent.reset()
	c.text, c.tokens, c.base, c.blocks = nil, nil, 0, 0
	if len(text) > 0 {
		c.Continue(text)
		return
	}
	c.tokens = tokens
	c.blocks = min(len(tokens)/BlockTokens, MaxChain)
	c.length = float64(len(tokens)) / BlockTokens
}

// Skip goes past blocks of which the keys and the last one's digest are known
// already, after all that c has so far. Their text is never looked at.
func (c *Chain) Skip(keys []uint64, last Digest) {
	c.HashTo(c.blocks)
	c.keys = append(c.keys, keys[:min(len(keys), MaxChain-len(c.keys))]...)
	c.last = fromDigest(&last)
	c.blocks, c.length = len(c.keys), float64(len(c.keys))
}

// Continue adds the text that follows the blocks that c has so far, all of which are
// full. It is aliased like the text given to Reset.
func (c *Chain) Continue(text []byte) {
	c.HashTo(c.blocks)
	c.text, c.base = text, len(c.keys)
	c.blocks = min(c.base+len(text)/BlockBytes, MaxChain)
	c.length = float64(c.base) + float64(len(text))/BlockBytes
}

// Blocks is the number of full blocks of the prompt, at most MaxChain; only those have keys.
func (c *Chain) Blocks() int { return c.blocks }

// Key is the first 8 bytes of the digest of block i, little-endian, 0 <= i < Blocks(); it
// hashes the chain as far as that. The index knows blocks by it.
func (c *Chain) Key(i int) uint64 {
	if i >= len(c.keys) {
		c.HashTo(i + 1)
	}
	return c.keys[i]
}

// Known are the keys of the blocks that have been hashed or skipped, and the digest of the last
// of them (the seed if there is none). The slice is valid until the next call that hashes.
func (c *Chain) Known() (keys []uint64, last Digest) { return c.keys, toDigest(c.last) }

// hashStep is how many digests HashTo makes at once; what the index needs of them is kept.
const hashStep = 32

// HashTo makes the first n blocks known, n <= Blocks(), and lets go of the prompt when these
// are all.
func (c *Chain) HashTo(n int) {
	if n > len(c.keys) {
		c.keys = slices.Grow(c.keys, n-len(c.keys))
		c.scratch = slices.Grow(c.scratch[:0], hashStep)
	}
	for from := len(c.keys); from < n; from = len(c.keys) {
		c.scratch = c.scratch[:min(n-from, hashStep)]
		if c.tokens != nil {
			hashTokens(c.scratch, &c.last, c.tokens[(from-c.base)*BlockTokens:])
		} else {
			hashText(c.scratch, &c.last, c.text[(from-c.base)*BlockBytes:])
		}
		for i := range c.scratch {
			c.keys = append(c.keys, keyOf(&c.scratch[i]))
		}
		c.last = c.scratch[len(c.scratch)-1]
	}
	if n == c.blocks {
		c.text, c.tokens = nil, nil
	}
}

func keyOf(d *words) uint64 { return uint64(d[0]) | uint64(d[1])<<32 }
