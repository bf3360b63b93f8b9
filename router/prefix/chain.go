package prefix

import "slices"

// MaxChain is the most blocks of one prompt that are looked at, a million tokens: one request
// can neither fill the index nor keep more memory than their digests take.
const MaxChain = 1 << 16

// Chain is the sequence of block digests of one prompt, hashed as far as it has
// been asked for. It also carries the scratch space of the Index's calls for
// this request. The zero value is an empty prompt; Reset makes it reusable
// without allocation. A Chain belongs to one goroutine at a time.
type Chain struct {
	seed   words
	text   []byte
	tokens []uint32
	blocks int
	length float64 // of the prompt in blocks, the unfinished last one included

	digests []words   // of the blocks hashed so far
	walk    []walker  // Match: the candidates still holding everything
	sent    sentState // Record: what was believed of the node at dispatch
}

// Reset makes c the chain of a prompt given as text or, when text is empty, as
// token ids. Both are aliased and must not change until the next Reset, or
// until Record has returned, which finishes the chain.
func (c *Chain) Reset(seed Digest, text []byte, tokens []uint32) {
	c.seed = fromDigest(&seed)
	c.text, c.tokens = text, tokens
	c.digests = c.digests[:0]
	c.sent.reset()
	if len(text) > 0 {
		c.tokens = nil
		c.blocks = min(len(text)/BlockBytes, MaxChain)
		c.length = float64(len(text)) / BlockBytes
		return
	}
	c.blocks = min(len(tokens)/BlockTokens, MaxChain)
	c.length = float64(len(tokens)) / BlockTokens
}

// Blocks is the number of full blocks of the prompt, at most MaxChain; only those have digests.
func (c *Chain) Blocks() int { return c.blocks }

// Digest is the digest of block i, 0 <= i < Blocks(); it hashes the chain as
// far as that.
func (c *Chain) Digest(i int) Digest {
	c.hashTo(i + 1)
	return toDigest(c.digests[i])
}

// hashTo makes the first n digests known, and lets go of the prompt when these
// are all.
func (c *Chain) hashTo(n int) {
	if from := len(c.digests); n > from {
		c.digests = slices.Grow(c.digests, n-from)[:n]
		parent := &c.seed
		if from > 0 {
			parent = &c.digests[from-1]
		}
		if c.tokens != nil {
			hashTokens(c.digests[from:], parent, c.tokens[from*BlockTokens:])
		} else {
			hashText(c.digests[from:], parent, c.text[from*BlockBytes:])
		}
	}
	if n == c.blocks {
		c.text, c.tokens = nil, nil
	}
}

// key is what the index knows block i by; it hashes the chain as far as that.
func (c *Chain) key(i int) uint64 {
	if i >= len(c.digests) {
		c.hashTo(i + 1)
	}
	d := &c.digests[i]
	return uint64(d[0]) | uint64(d[1])<<32
}
