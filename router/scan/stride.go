package scan

import "crypto/rand"

// strideKey is the secret under which strides are summed.
type strideKey [stride + 16]byte

func newStrideKey() *strideKey {
	k := new(strideKey)
	if _, err := rand.Read(k[:]); err != nil {
		panic(err) // it never fails
	}
	return k
}
