//go:build !amd64

package scan

// sumStride is implemented on amd64 only.
func sumStride(*strideKey, []byte) (first, second uint64, ok bool) { return 0, 0, false }
