package block

import "golang.org/x/sys/cpu"

// hasFold says whether this processor multiplies polynomials in registers of 512 bits; hasMix, in
// registers of 256 bits.
var (
	hasFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
	hasMix  = cpu.X86.HasAVX2 && cpu.X86.HasSSE42 && multiplies()
)

// fold writes 256 bytes to rest. The 256 bytes' checksum from state 0 equals that of the n pieces
// of 256 bytes at p from the given state; n is at least 1. States are not inverted, unlike
// checksums.
//
//go:noescape
func fold(rest *[256]byte, p *byte, n int, state uint32)

// mix is like fold, but for the n pieces of 128 bytes at p, from state 0, and writes 128 bytes.
// Meanwhile mix computes the states of the three following stretches of 32·n bytes, each from 0,
// and writes them to states. Another unit of the processor has the CRC32C instruction.
//
//go:noescape
func mix(rest *[128]byte, states *[3]uint32, p *byte, n int)

// multiplies says whether the processor has VPCLMULQDQ.
func multiplies() bool
