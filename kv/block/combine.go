package block

import "math/bits"

// reversed is the polynomial of CRC32C, lowest power in the highest bit.
const reversed = 0x82f63b78

// powers[i] is x^(8·2^i) modulo the polynomial. Multiplying a checksum by powers[i] appends 2^i
// bytes.
var powers = func() (p [64]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = multiply(p[i-1], p[i-1])
	}
	return p
}()

// multiply returns the product of two polynomials modulo that of CRC32C.
func multiply(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 { // without branches, because they would be unpredictable
		product ^= b & -(a >> 31)
		b = b>>1 ^ reversed&-(b&1)
	}
	return product
}

// Combine returns the CRC32C of two consecutive parts. Combine needs the checksum of each part and
// the second part's length in bytes.
func Combine(first, second uint32, secondLen uint64) uint32 {
	for ; secondLen != 0; secondLen &= secondLen - 1 {
		first = multiply(first, powers[bits.TrailingZeros64(secondLen)])
	}
	return first ^ second
}
