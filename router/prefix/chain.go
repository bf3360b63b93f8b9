package prefix

import (
	"math"
	"slices"
)

// MaxChain bounds the blocks of one prompt that count, a million tokens. One request can neither
// fill the index nor keep more memory than the keys of so many blocks.
const MaxChain = 1 << 16

// Chain is the sequence of a prompt's blocks, hashed as far as needed. Chain also holds the scratch
// space of the Index's calls for this request. The zero value is an empty prompt. Reset makes a
// Chain reusable without allocation. One goroutine at a time uses a Chain.
type Chain struct {
	text   []byte   // from block base on
	tokens []uint32 // set instead of text
	base   int
	blocks int
	length float64 // length of the prompt in blocks, the unfinished last one included

	keys    []uint64  // keys of the known blocks: hashed, or skipped
	tagged  []tags    // tags of the leading complete groups
	digests []words   // digests of the known blocks from base on
	parent  words     // digest of the block before base, or the seed
	walk    []walker  // scratch of Match: the candidates that still hold every group
	sent    sentState // set by Record: the beliefs about the node at the dispatch
}

// Reset makes c the chain of a prompt given as text or, if text is empty, as token ids. Text and
// token ids are aliased. Text and tokens must not change until Record has returned, which finishes
// the chain, or until the next Reset.
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

// Measure makes c the chain of a prompt of which only the length is known: its bytes or, without
// bytes, its tokens. The blocks of such a chain have no keys, so nothing may ask for them.
func (c *Chain) Measure(bytes, tokens int) {
	c.Reset(Digest{}, nil, nil)
	c.blocks, c.length = tokens/BlockTokens, float64(tokens)/BlockTokens
	if bytes > 0 {
		c.blocks, c.length = bytes/BlockBytes, float64(bytes)/BlockBytes
	}
	c.blocks = min(c.blocks, MaxChain)
}

// Skip appends blocks with known keys. last is the digest of the last appended block. The blocks'
// text is never read.
func (c *Chain) Skip(keys []uint64, last Digest) {
	c.HashTo(c.blocks)
	c.keys = append(c.keys, keys[:min(len(keys), MaxChain-len(c.keys))]...)
	c.digests, c.base, c.parent = c.digests[:0], len(c.keys), fromDigest(&last)
	c.blocks, c.length = len(c.keys), float64(len(c.keys))
}

// Continue appends the text behind the present blocks, all of which must be full. The text is
// aliased like the text given to Reset.
func (c *Chain) Continue(text []byte) {
	c.HashTo(c.blocks)
	if n := len(c.digests); n > 0 {
		c.digests, c.base, c.parent = c.digests[:0], len(c.keys), c.digests[n-1]
	}
	c.text = text
	c.blocks = min(c.base+len(text)/BlockBytes, MaxChain)
	c.length = float64(c.base) + float64(len(text))/BlockBytes
}

// Lengthen adds bytes to the length of a prompt of MaxChain blocks. The text of the added bytes is
// not given.
func (c *Chain) Lengthen(bytes int) { c.length += float64(bytes) / BlockBytes }

// Blocks returns the number of full blocks of the prompt, at most MaxChain. Only full blocks have
// keys.
func (c *Chain) Blocks() int { return c.blocks }

// Tokens returns the number of the prompt's tokens. A text counts as a token for each four bytes,
// rounded up.
func (c *Chain) Tokens() int64 { return int64(math.Ceil(c.length * BlockTokens)) }

// Key returns the key of block i, 0 <= i < Blocks(): the first 8 bytes of its digest,
// little-endian. Key hashes the chain as far as block i. The index identifies blocks by their keys.
func (c *Chain) Key(i int) uint64 {
	if i >= len(c.keys) {
		c.HashTo(i + 1)
	}
	return c.keys[i]
}

// Keys returns the keys of the known blocks. The slice is valid until the next call that hashes.
func (c *Chain) Keys() []uint64 { return c.keys }

// Digest returns the digest of block i, or the seed for -1. ok is false if the block was not hashed
// since the last Skip or Continue.
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

// HashTo makes the first n blocks known, n <= Blocks(). Once all blocks are known it drops the
// references to the prompt.
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
