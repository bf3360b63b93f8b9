package netpath

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Conditions apply to both directions of a path.
type Conditions struct {
	Delay time.Duration // of each packet in each direction, in addition to the time of forwarding
	Loss  float64       // share of lost packets in each direction, independently; 0 to 1
	Rate  int64         // bytes per second in each direction; 0: no limit
}

// Options of New.
type Options struct {
	Conditions
	Queue int    // packets in transit per direction; further ones are dropped; 0: 8192
	Seed  uint64 // seed of the losses: the same packets of the same traffic are lost; Netem has none
}

// defaultQueue is 12 MiB of full packets in each direction: 20 ms of 600 MB/s.
const defaultQueue = 8192

// mtu is Ethernet's MTU.
const mtu = 1500

// Counts are the counts of one direction of a path.
type Counts struct {
	Forwarded uint64 // packets
	Lost      uint64 // packets lost by Conditions.Loss; with Netem also those for which the queue was full
	Dropped   uint64 // packets for which the queue was full; 0 with Netem
}

// Path is two network namespaces with a path between them.
type Path struct {
	A, B *Side

	link  link
	close sync.Once
}

// link carries packets between the sides.
type link interface {
	set(Conditions)
	counts() (ab, ba Counts)
	shut() // called before the sides' threads end
}

// New makes a path. New's error wraps fs.ErrPermission or fs.ErrNotExist if the process may not
// make namespaces or TUN devices.
func New(o Options) (*Path, error) { return join(o, newRelay) }

// join makes a path with a link of its own.
func join(o Options, with func(a, b *Side, o Options) (link, error)) (*Path, error) {
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	p := &Path{}
	var err error
	if p.A, err = newSide(netip.AddrFrom4([4]byte{10, 77, 0, 1})); err != nil {
		return nil, err
	}
	if p.B, err = newSide(netip.AddrFrom4([4]byte{10, 77, 0, 2})); err != nil {
		p.A.shut()
		return nil, err
	}
	p.link, err = with(p.A, p.B, o)
	if err != nil {
		p.A.shut()
		p.B.shut()
		return nil, fmt.Errorf("netpath: %w", err)
	}
	return p, nil
}

// Set changes the conditions of packets from now on. Packets in transit arrive under the former
// conditions.
func (p *Path) Set(c Conditions) { p.link.set(c) }

// Counts returns the counts of the directions from A to B and from B to A.
func (p *Path) Counts() (ab, ba Counts) { return p.link.counts() }

// Close removes the devices and the namespaces as soon as no program is in them.
func (p *Path) Close() {
	p.close.Do(func() {
		p.link.shut()
		p.A.shut()
		p.B.shut()
	})
}
