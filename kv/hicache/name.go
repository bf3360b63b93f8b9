package hicache

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/alias"
)

// Hash is SGLang's hash of a page and of everything before it. The zero Hash comes before a
// prompt's first page.
type Hash [sha256.Size]byte

// Next returns the hash of the page that follows the page with the hash before: SHA-256 over that
// hash, unless it is zero, and the token ids as little-endian numbers of 4 bytes.
func Next(before Hash, tokens []uint32) Hash {
	var room [sha256.Size + 4*64]byte // of a page of 64 tokens
	b := room[:0]
	if before != (Hash{}) {
		b = append(b, before[:]...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return sha256.Sum256(b)
}

// Name returns the first 8 bytes of a hash.
func (h *Hash) Name() alias.Name { return alias.Name(binary.BigEndian.Uint64(h[:])) }
