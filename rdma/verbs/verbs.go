// Package verbs drives network cards through libibverbs, in builds with cgo and the tag rdma. Other
// builds have no cards (rdma.ErrNotBuilt).
//
// Every verbs object has one owner, which destroys it, and a place in the order of destruction. A
// device owns a context, a protection domain and the registered regions. A pair owns a completion
// channel, a completion queue, a queue pair and windows. An object is not destroyed while other
// objects depend on it (ErrInUse).
package verbs

import (
	"errors"
	"net/netip"
)

// ErrInUse means that a verbs object cannot be destroyed, because other objects depend on it.
var ErrInUse = errors.New("verbs: object is in use")

// ErrOrder means that the state of a queue pair does not allow an operation.
var ErrOrder = errors.New("verbs: not in this state of the queue pair")

// Options say how to open a device. The zero value means the defaults.
type Options struct {
	Port int // port of the card. 0: 1
	// Address selects the GID, for RoCE v2, of the pairs. Zero: an IPv4 address, or else a global
	// IPv6 address, or else a link-local one.
	Address netip.Addr
	// LooseWindows allows windows that bound reads only by the whole region, as soft-RoCE's do.
	// LooseWindows is for tests.
	LooseWindows bool
}
