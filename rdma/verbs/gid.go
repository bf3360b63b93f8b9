//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"net/netip"
	"syscall"
)

// gid is a GID of a port, and its place.
type gid struct {
	raw   [16]byte
	index int // the kernel may give the index to another GID once this one is removed
}

// roce finds the GID for RoCE v2 of address. A port has a GID for v1 and one for v2 for each of its
// addresses, at indexes that differ between hosts.
func (k *card) roce(port int, address netip.Addr) (gid, error) {
	var table [maxGIDs]C.struct_verbs_gid
	n := C.verbs_gids(k.c, C.int(port), &table[0], maxGIDs)
	if n < 0 {
		return gid{}, fmt.Errorf("verbs: GIDs of port %d: %w", port, syscall.Errno(-n))
	}
	var best gid
	var rank int
	for _, e := range table[:n] {
		if e.roce_v2 == 0 {
			continue
		}
		g := gid{index: int(e.index)}
		for i, b := range e.raw {
			g.raw[i] = byte(b)
		}
		if r := preference(netip.AddrFrom16(g.raw).Unmap(), address); r > rank {
			best, rank = g, r
		}
	}
	if rank == 0 {
		return gid{}, fmt.Errorf("verbs: none of %d GIDs of port %d is of RoCE v2 and fits address %v", n, port,
			address)
	}
	return best, nil
}

// preference is higher for a better address, and 0 for an unsuitable one.
func preference(a, wanted netip.Addr) int {
	switch {
	case wanted.IsValid() && a != wanted.Unmap().WithZone(""), a.IsUnspecified():
		return 0
	case a.Is4():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	default:
		return 1
	}
}

// has tells whether the port still has the GID at its index.
func (k *card) has(port int, g gid) bool {
	var raw [16]C.uint8_t
	for i, b := range g.raw {
		raw[i] = C.uint8_t(b)
	}
	return C.verbs_has_gid(k.c, C.int(port), C.int(g.index), &raw[0]) != 0
}
