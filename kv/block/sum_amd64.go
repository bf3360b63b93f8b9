package block

import "golang.org/x/sys/cpu"

// hasFold tells whether this processor multiplies polynomials in registers of 512 bits, hasMix
// whether in those of 256.
var (
	hasFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
	hasMix  = cpu.X86.HasAVX2 && cpu.X86.HasSSE42 && multiplies()
)

// fold leaves in rest 256 bytes that have, from state 0 on, the checksum that the n pieces of 256
// bytes at p, at least one, have from the given state on. States are not inverted, as checksums
// are.
//
//go:noescape
func fold(rest *[256]byte, p *byte, n int, state uint32)

// mix does the same with 128 bytes for the n pieces of 128 bytes at p, from state 0 on, and
// meanwhile leaves in states those of the three stretches of 32·n bytes that follow, each from 0
// on: the instruction for CRC32C is another unit's.
//
//go:noescape
func mix(rest *[128]byte, states *[3]uint32, p *byte, n int)

// multiplies tells whether the processor has VPCLMULQDQ.
func multiplies() bool
