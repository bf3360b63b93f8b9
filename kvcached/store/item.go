package store

import (
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Tiers is a set of tiers.
type Tiers uint8

// The tiers.
const (
	RAM Tiers = 1 << iota
	SSD
	// Remote is set by who looks beyond this host: the block is on another one.
	Remote
)

// Item says who a block is and what is kept with it.
type Item struct {
	Addr      block.Addr
	Namespace string // canonical text whose ID is Addr.Model; may be empty where the namespace has blocks already
	// the client's name for it (RESP, S3), at most block.MaxKey bytes; nil for addresses of tokens
	Key     []byte
	Parent  block.Digest // zero: none
	Expires int64        // Unix ms; 0: never
	Attr    []byte       // opaque, at most block.MaxAttr bytes
}

// Info is what is known of a block. Only Get, Describe and Scan fill Key and Attr.
type Info struct {
	Item   Item
	Length int    // of the payload, bytes
	CRC    uint32 // CRC32C of the payload
	Tiers  Tiers  // where it is
	Uses   uint32 // by Get, since it came to RAM
}

// Change says that a block came to a tier or left it. A block that is replaced comes again. Of one
// that leaves SSD, or of which that is said twice, Namespace and Parent are empty where RAM does
// not know them.
type Change struct {
	Addr      block.Addr
	Namespace string
	Parent    block.Digest
	Tier      Tiers // one
	Present   bool
}

// check refuses what cannot be kept.
func (it *Item) check(length int) error {
	switch {
	case length < 0 || length > block.MaxPayload:
		return fmt.Errorf("%w: a payload of %d bytes, %d are allowed", ErrTooLarge, length, block.MaxPayload)
	case len(it.Key) > block.MaxKey:
		return fmt.Errorf("%w: a key of %d bytes, %d are allowed", ErrTooLarge, len(it.Key), block.MaxKey)
	case len(it.Attr) > block.MaxAttr:
		return fmt.Errorf("%w: an attribute of %d bytes, %d are allowed", ErrTooLarge, len(it.Attr), block.MaxAttr)
	}
	return nil
}

// info fills in what is known of a block without its key and attribute. The lock is held.
func (s *Store) info(id ram.ID, to *Info) {
	e := s.tier.At(id)
	name := s.tier.Names().At(e.NS())
	to.Item.Addr.Digest, to.Item.Addr.Model, to.Item.Addr.Layer = e.Digest, name.ID, e.Layer
	to.Item.Namespace = name.Text
	to.Item.Parent = s.tier.Parent(id)
	to.Item.Expires = e.Expires
	to.Item.Key, to.Item.Attr = nil, nil
	to.Length, to.CRC, to.Uses = int(e.Length), e.CRC, uint32(e.Uses)
	if to.Tiers = RAM; e.Mark&onDisk != 0 {
		to.Tiers |= SSD
	}
}
