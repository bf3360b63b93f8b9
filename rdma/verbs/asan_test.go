//go:build linux && cgo && rdma && asan

package verbs

// watched means that the race detector or AddressSanitizer is on, under which tests take several
// times as long. underASan means AddressSanitizer.
const watched, underASan = true, true
