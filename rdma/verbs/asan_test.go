//go:build linux && cgo && rdma && asan

package verbs

// watched says that the race detector or AddressSanitizer watches, which takes several times as
// long, and underASan that it is the latter.
const watched, underASan = true, true
