package prefix

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// schedule is the input of hashAVX2 and hashAVX512: the initial words of the state's lower half,
// and for each round the order of the 16 message words.
type schedule struct {
	low   [8]uint32
	order [7][16]uint32
	upper [7][16]uint32 // all ones where order names one of the upper eight words; for hashAVX2
}

// hashAVX2 writes the digests of the consecutive 64-byte blocks at text, at least one, the first of
// them after parent.
//
//go:noescape
func hashAVX2(digests, parent *words, text unsafe.Pointer, blocks int, s *schedule)

// hashAVX512 is hashAVX2 for processors that also rotate words, and permute the words of two
// registers, in one instruction. hashAVX512 uses registers of at most 256 bits. The rounds of one
// block wait for each other, and a rotation in one step makes them a seventh faster.
//
//go:noescape
func hashAVX512(digests, parent *words, text unsafe.Pointer, blocks int, s *schedule)

var wordOrder = newSchedule()

// hashWords hashes with hashAVX512 or hashAVX2. hashWords returns false if the processor has the
// instructions of neither.
func hashWords(digests []words, parent *words, text unsafe.Pointer) bool {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX2:
		hashAVX512(&digests[0], parent, text, len(digests), wordOrder)
	case cpu.X86.HasAVX2:
		hashAVX2(&digests[0], parent, text, len(digests), wordOrder)
	default:
		return false
	}
	return true
}

// newSchedule derives the order of each round from BLAKE3's permutation of the message words. A
// round adds the first and then the second word of each column, then those of the diagonals.
// hashAVX2 has the last diagonal in its first lane.
func newSchedule() *schedule {
	permutation := [16]uint32{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8}
	lanes := [16]int{0, 2, 4, 6, 1, 3, 5, 7, 14, 8, 10, 12, 15, 9, 11, 13}
	s := &schedule{low: lowState}
	words := [16]uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for r := range s.order {
		for i, lane := range lanes {
			s.order[r][i] = words[lane]
			if words[lane] >= 8 {
				s.upper[r][i] = math.MaxUint32
			}
		}
		before := words
		for i, p := range permutation {
			words[i] = before[p]
		}
	}
	return s
}

// hashText computes as many digests as digests has room for, from the blocks at the start of text.
// The first one follows parent.
func hashText(digests []words, parent *words, text []byte) {
	text = text[:len(digests)*BlockBytes]
	if !hashWords(digests, parent, unsafe.Pointer(&text[0])) {
		hashTextGeneric(digests, parent, text)
	}
}

// hashTokens is hashText for token ids.
func hashTokens(digests []words, parent *words, tokens []uint32) {
	tokens = tokens[:len(digests)*BlockTokens]
	if !hashWords(digests, parent, unsafe.Pointer(&tokens[0])) {
		hashTokensGeneric(digests, parent, tokens)
	}
}
