package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/cilium/ebpf"
)

// PeersLayout is a number that differs between versions whose counts of peers do not have the same
// layout.
func PeersLayout() (uint64, error) {
	spec, err := loadSockets()
	if err != nil {
		return 0, fmt.Errorf("bpf: read an embedded object: %w", err)
	}
	l, err := wanted(spec.Maps["cgn_peers"])
	if err != nil {
		return 0, fmt.Errorf("bpf: %w", err)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %v", l.key, l.value)
	return h.Sum64(), nil
}

// PeerCounts reads the counts of peers through a descriptor that another process has passed, with
// no rights of its own. It is used by one goroutine.
type PeerCounts struct {
	m     *ebpf.Map
	key   socketsPeerKey
	value socketsSockets
}

// NewPeerCounts takes over the descriptor, also where it fails. layout is the PeersLayout of who
// has passed it.
func NewPeerCounts(fd int, layout uint64) (*PeerCounts, error) {
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("bpf: the descriptor that was passed: %w", err)
	}
	c := &PeerCounts{m: m}
	ours, err := PeersLayout()
	if err == nil && (ours != layout || m.Type() != ebpf.LRUHash || int(m.KeySize()) != binary.Size(c.key) ||
		int(m.ValueSize()) != binary.Size(c.value)) {
		err = errors.New("bpf: the descriptor that was passed is of another version's counts of peers")
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return c, nil
}

// Peer reads the counts of connections of this host to addr. ok is false where there were none
// lately.
func (c *PeerCounts) Peer(addr netip.AddrPort) (s Sockets, ok bool, err error) {
	c.key = peerKey(addr)
	err = c.m.Lookup(&c.key, &c.value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, wrap("cgn_peers", err)
	}
	return c.value.counts(), true, nil
}

// ID is a number that no other table of counts has until the host is booted again: the table is
// another one where programs were loaded anew that know nothing of the connections that there are.
// 0: it cannot be told.
func (c *PeerCounts) ID() uint32 {
	info, err := c.m.Info()
	if err != nil {
		return 0
	}
	id, _ := info.ID()
	return uint32(id)
}

// Close closes the descriptor.
func (c *PeerCounts) Close() error { return c.m.Close() }
