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
	// Remote says that another host has the block. Only callers that look beyond this host set
	// Remote.
	Remote
)

// Item identifies a block and has the metadata that is kept with it.
type Item struct {
	Addr      block.Addr
	Namespace string // canonical text whose ID is Addr.Model; may be empty if the namespace already has blocks
	// Key is the client's name for the block (RESP, S3), at most block.MaxKey bytes. Blocks of
	// token sequences have no key.
	Key     []byte
	Parent  block.Digest // zero: none
	Expires int64        // Unix ms; 0: never
	Attr    []byte       // opaque, at most block.MaxAttr bytes
}

// Info is the description of a block in the store. Only Get, Describe and Scan fill Key and Attr.
type Info struct {
	Item   Item
	Length int    // length of the payload, in bytes
	CRC    uint32 // CRC32C of the payload
	Tiers  Tiers  // tiers that have the block
	Uses   uint32 // Gets since the block came to RAM
}

// Change reports that a block came to a tier or left it. A replaced block is reported as come
// again. Namespace and Parent may be empty if the block left SSD or if the change is reported
// twice. Both come from RAM then, and are empty if RAM does not have them.
type Change struct {
	Addr      block.Addr
	Namespace string
	Parent    block.Digest
	Key, Attr []byte // only with Present; valid during the call
	Tier      Tiers  // exactly one tier
	Present   bool
}

// check returns an error for a block that cannot be stored.
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

// info fills in the Info of a block without key and attribute. The caller holds the lock.
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
