package lmcache

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/alias"
)

// First returns the name that comes before a prompt's first chunk. seed is the engine's
// PYTHONHASHSEED.
func First(seed string) alias.Name {
	return sum(append(appendHead(nil, textType, uint64(len(seed))), seed...))
}

// Next returns the name of the full chunk that follows the chunk named before: the hash of the
// canonical CBOR of [before, [tokens], []].
func Next(before alias.Name, tokens []uint32) alias.Name {
	var room [2048]byte // of 256 tokens below 2^32
	b := appendHead(room[:0], arrayType, 3)
	b = appendHead(b, numberType, uint64(before))
	b = appendHead(b, arrayType, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendHead(b, numberType, uint64(t))
	}
	return sum(appendHead(b, arrayType, 0))
}

func sum(b []byte) alias.Name {
	h := sha256.Sum256(b)
	return alias.Name(binary.BigEndian.Uint64(h[:]))
}

// Major types of CBOR.
const (
	numberType = 0 << 5
	textType   = 3 << 5
	arrayType  = 4 << 5
)

// appendHead appends the shortest head of a CBOR item.
func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}
