package engine

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
)

// blockHash identifies a full block together with everything before it.
type blockHash [32]byte

// hashBlock hashes one full block after its parent. Without a parent hashBlock uses salt, which
// separates tenants.
func hashBlock(parent *blockHash, salt string, tokens []uint32) blockHash {
	buf := make([]byte, 0, 512)
	if parent != nil {
		buf = append(buf, parent[:]...)
	} else {
		buf = append(buf, salt...)
	}
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return sha256.Sum256(buf)
}

// hashChain appends to a chain the hashes of the full blocks of tokens that come after the chain.
func hashChain(chain []blockHash, tokens []uint32, blockTokens int, salt string) []blockHash {
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		var parent *blockHash
		if n := len(chain); n > 0 {
			parent = &chain[n-1]
		}
		chain = append(chain, hashBlock(parent, salt, tokens[:blockTokens]))
	}
	return chain
}

// block is a full, hashed block. A block without a reference is in the free list and can be
// evicted. A block with a reference is pinned.
type block struct {
	hash blockHash
	refs int
	free *list.Element // in the free list, where refs is 0
}

// cache accounts for the KV blocks of the device. Loose blocks are blocks of a sequence that are
// not full yet. The scheduler's goroutine owns the cache.
type cache struct {
	capacity int
	blocks   map[blockHash]*block
	loose    int
	pinned   int
	free     list.List // of unreferenced full blocks, the least recently used first
	evicted  func(blockHash)
}

func newCache(capacity int, evicted func(blockHash)) *cache {
	return &cache{capacity: capacity, blocks: make(map[blockHash]*block), evicted: evicted}
}

// used returns the number of blocks that sequences need.
func (c *cache) used() int { return c.loose + c.pinned }

// match pins the longest cached run of hashes and appends it to held.
func (c *cache) match(held []*block, hashes []blockHash) []*block {
	for _, h := range hashes {
		b := c.blocks[h]
		if b == nil {
			break
		}
		c.pin(b)
		held = append(held, b)
	}
	return held
}

// take makes n loose blocks and evicts others as needed. take returns false if they do not fit.
func (c *cache) take(n int) bool {
	if c.used()+n > c.capacity {
		return false
	}
	for c.loose+n+len(c.blocks) > c.capacity {
		b := c.free.Remove(c.free.Front()).(*block)
		delete(c.blocks, b.hash)
		c.evicted(b.hash)
	}
	c.loose += n
	return true
}

// fill turns a loose block into the full block h, pinned. If a block with the same content exists,
// fill uses that block; stored says that h is new in the cache.
func (c *cache) fill(h blockHash) (b *block, stored bool) {
	c.loose--
	if b = c.blocks[h]; b != nil {
		c.pin(b)
		return b, false
	}
	b = &block{hash: h, refs: 1}
	c.blocks[h] = b
	c.pinned++
	return b, true
}

// release frees the blocks of a sequence. The last block goes into the free list first, so leaves
// are evicted before their parents.
func (c *cache) release(held []*block, loose int) {
	c.loose -= loose
	for i := len(held) - 1; i >= 0; i-- {
		c.unpin(held[i])
	}
}

// clear forgets all blocks. clear returns false if a sequence uses one.
func (c *cache) clear() bool {
	if c.used() > 0 {
		return false
	}
	clear(c.blocks)
	c.free.Init()
	return true
}

func (c *cache) pin(b *block) {
	if b.refs == 0 {
		c.free.Remove(b.free)
		c.pinned++
	}
	b.refs++
}

func (c *cache) unpin(b *block) {
	b.refs--
	if b.refs > 0 {
		return
	}
	c.pinned--
	b.free = c.free.PushBack(b)
}
