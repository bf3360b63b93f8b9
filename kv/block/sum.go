package block

import (
	"hash/crc32"
	"math/bits"
	"sync"
)

// Castagnoli is the polynomial of all checksums of blocks, in frames, segments and leases.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// foldMin and mixMin are the lengths, in bytes, from which folding and mixing are faster than the
// processor's CRC32C instruction alone.
const (
	foldMin = 1024
	mixMin  = 8 << 10
)

// scratch is the memory of Extend. scratch cannot be on the stack, because package crc32 calls
// through a variable.
type scratch struct {
	fold   [256]byte
	mix    [128]byte
	states [3]uint32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Sum returns the checksum of a block's payload.
func Sum(payload []byte) uint32 { return Extend(0, payload) }

// Extend returns the checksum after more is appended to the bytes with checksum sum. The checksum
// of no bytes is 0.
func Extend(sum uint32, more []byte) uint32 {
	switch {
	case hasFold && len(more) >= foldMin:
		s := scratches.Get().(*scratch)
		n := len(more) / len(s.fold)
		fold(&s.fold, &more[0], n, ^sum)
		sum = crc32.Update(^uint32(0), Castagnoli, s.fold[:])
		more = more[n*len(s.fold):]
		scratches.Put(s)
	case hasMix && len(more) >= mixMin:
		s := scratches.Get().(*scratch)
		for len(more) >= mixMin {
			sum, more = s.extend(sum, more)
		}
		scratches.Put(s)
	}
	return crc32.Update(sum, Castagnoli, more)
}

// extend adds a part of more to sum and returns the rest. The part is as much as mix takes at once,
// at least half of more.
func (s *scratch) extend(sum uint32, more []byte) (uint32, []byte) {
	const piece = 128 + 3*32
	log := bits.Len(uint(len(more)/piece)) - 1
	mix(&s.mix, &s.states, &more[0], 1<<log)
	state := multiply(^sum, powers[log+7]) ^ ^crc32.Update(^uint32(0), Castagnoli, s.mix[:])
	for _, next := range s.states {
		state = multiply(state, powers[log+5]) ^ next
	}
	return ^state, more[piece<<log:]
}
