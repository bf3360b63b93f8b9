package block

import "math/bits"

// reversed is the polynomial of CRC32C, lowest power in the highest bit.
const reversed = 0x82f63b78

// powers[i] is x^(8·2^i) modulo the polynomial: what 2^i bytes that follow do to a checksum.
var powers = func() (p [64]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = multiply(p[i-1], p[i-1])
	}
	return p
}()

// multiply is the product of two polynomials modulo that of CRC32C.
func multiply(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 { // without branches, which nobody could foresee
		product ^= b & -(a >> 31)
		b = b>>1 ^ reversed&-(b&1)
	}
	return product
}

// Combine is the CRC32C of two parts one after the other, from the checksum of each and the length
// of the second in bytes.
func Combine(first, second uint32, secondLen uint64) uint32 {
	for ; secondLen != 0; secondLen &= secondLen - 1 {
		first = multiply(first, powers[bits.TrailingZeros64(secondLen)])
	}
	return first ^ second
}
