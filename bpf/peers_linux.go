package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/cilium/ebpf"
)

// PeersLayout returns a number that identifies the layout of the counts of peers.
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

// PeerCounts reads the counts of peers through a descriptor from another process. PeerCounts needs
// no rights of its own. One goroutine uses a PeerCounts.
type PeerCounts struct {
	m     *ebpf.Map
	key   socketsPeerKey
	value socketsSockets
}

// NewPeerCounts takes over the descriptor, even if it fails. layout is the PeersLayout of the
// process that passed the descriptor.
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

// Peer returns the counts of this host's connections to addr. ok is false if there were none
// recently.
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

// ID identifies the table of counts until the host is booted again. The table changes when programs
// are loaded anew without knowledge of existing connections. 0: unknown.
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
