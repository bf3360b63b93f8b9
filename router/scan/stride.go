package scan

import "crypto/rand"

// strideKey is the secret key of the sums of strides.
type strideKey [stride + 16]byte

func newStrideKey() *strideKey {
	k := new(strideKey)
	if _, err := rand.Read(k[:]); err != nil {
		panic(err) // rand.Read never fails
	}
	return k
}
