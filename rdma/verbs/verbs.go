// Package verbs drives network cards through libibverbs, in builds with cgo and the tag rdma; in
// others there are none (rdma.ErrNotBuilt).
//
// Every verbs object has one owner, which destroys it, and a place in the order in which that is
// done: a device has a context, a protection domain and the registered regions, a pair has a
// completion channel, a completion queue, a queue pair and windows. What something still hangs on
// is not destroyed (ErrInUse).
package verbs

import (
	"errors"
	"net/netip"
)

// ErrInUse says that a verbs object was to be destroyed on which others hang.
var ErrInUse = errors.New("verbs: object is in use")

// ErrOrder says that a queue pair was asked for what its state does not allow.
var ErrOrder = errors.New("verbs: not in this state of the queue pair")

// Options say how to open a device. The zero value stands for what is said of each.
type Options struct {
	Port int // of the card. 0: 1
	// whose GID, of RoCE v2, the pairs have. Zero: an IPv4 address before a global one of IPv6
	// before one of the link
	Address netip.Addr
	// LooseWindows has windows be used that do not hold reads to their bounds, but to those of all
	// the region, as soft-RoCE's are: for tests.
	LooseWindows bool
}
