//go:build linux && cgo && rdma && race

package verbs

const watched, underASan = true, false
