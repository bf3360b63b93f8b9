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
	tagged  []tags    // of the leading complete groups
	digests []words   // of those from base on
	parent  words     // the digest of the block before base, or the seed
	walk    []walker  // Match: the candidates still holding everything
	sent    sentState // Record: what was believed of the node at dispatch
}

// Reset makes c the chain of a prompt given as text or, when text is empty, as
// token ids. Both are aliased and must not change until the next Reset, or
// until Record has returned, which finishes the chain.
func (c *Chain) Reset(seed Digest, text []byte, tokens []uint32) {
	c.keys, c.tagged, c.digests, c.parent = c.keys[:0], c.tagged[:0], c.digests[:0], fromDigest(&seed)
	c.walk = c.walk[:0]
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
	c.digests, c.base, c.parent = c.digests[:0], len(c.keys), fromDigest(&last)
	c.blocks, c.length = len(c.keys), float64(len(c.keys))
}

// Continue adds the text that follows the blocks that c has so far, all of which are
// full. It is aliased like the text given to Reset.
func (c *Chain) Continue(text []byte) {
	c.HashTo(c.blocks)
	if n := len(c.digests); n > 0 {
		c.digests, c.base, c.parent = c.digests[:0], len(c.keys), c.digests[n-1]
	}
	c.text = text
	c.blocks = min(c.base+len(text)/BlockBytes, MaxChain)
	c.length = float64(c.base) + float64(len(text))/BlockBytes
}

// Lengthen adds bytes to the length of a prompt of MaxChain blocks, whose further text is not
// given.
func (c *Chain) Lengthen(bytes int) { c.length += float64(bytes) / BlockBytes }

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

// Keys are the keys of the blocks that are known. The slice is valid until the next call that
// hashes.
func (c *Chain) Keys() []uint64 { return c.keys }

// Digest is the digest of block i, or the seed for -1, where it has been hashed since the last
// Skip or Continue; false where it has not.
func (c *Chain) Digest(i int) (d Digest, ok bool) {
	switch at := i - c.base; {
	case at == -1:
		return toDigest(c.parent), true
	case at < 0 || at >= len(c.digests):
		return Digest{}, false
	default:
		return toDigest(c.digests[at]), true
	}
}

// HashTo makes the first n blocks known, n <= Blocks(), and lets go of the prompt when these
// are all.
func (c *Chain) HashTo(n int) {
	if from := len(c.keys); n > from {
		at := from - c.base
		c.digests = slices.Grow(c.digests, n-from)[:n-c.base]
		parent := &c.parent
		if at > 0 {
			parent = &c.digests[at-1]
		}
		if c.tokens != nil {
			hashTokens(c.digests[at:], parent, c.tokens[at*BlockTokens:])
		} else {
			hashText(c.digests[at:], parent, c.text[at*BlockBytes:])
		}
		c.keys = slices.Grow(c.keys, n-from)
		for i := range c.digests[at:] {
			c.keys = append(c.keys, keyOf(&c.digests[at+i]))
		}
	}
	if n == c.blocks {
		c.text, c.tokens = nil, nil
	}
}

func keyOf(d *words) uint64 { return uint64(d[0]) | uint64(d[1])<<32 }
