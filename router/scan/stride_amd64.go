package scan

import "golang.org/x/sys/cpu"

//go:noescape
func sumAVX2(sums *[8]uint64, key *strideKey, text *byte)

// sumStride returns UMAC's NH of the stride at the start of text, twice. The second key is the
// first one moved by four words. Two different strides have equal sums with a probability of 2^-64,
// unless the key is known. sumStride takes half the time of a hash that mixes as it goes. ok is
// false if the processor lacks the instructions.
func sumStride(key *strideKey, text []byte) (first, second uint64, ok bool) {
	if !cpu.X86.HasAVX2 {
		return 0, 0, false
	}
	var s [8]uint64
	sumAVX2(&s, key, &text[:stride][0])
	return s[0] + s[1] + s[2] + s[3], s[4] + s[5] + s[6] + s[7], true
}
