package netpath

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Conditions of both directions of a path.
type Conditions struct {
	Delay time.Duration // of each packet each way, beyond what forwarding takes
	Loss  float64       // share of packets that vanish, each way, independently of each other; 0 to 1
	Rate  int64         // bytes per second each way; 0: as fast as packets can be forwarded
}

// Link is what joins the two sides.
type Link string

const (
	// Relay is the default: this process carries each packet from one TUN device to the other.
	Relay Link = "relay"
	// Netem is a pair of veth devices with sch_netem on both, where the kernel has these. The
	// devices segment nothing, so that TCP's packets are lost and delayed one by one; those of a
	// program that has the kernel segment UDP (UDP_SEGMENT, quic-go's GSO) in batches.
	Netem Link = "netem"
)

// Options of New.
type Options struct {
	Conditions
	Link  Link   // "": Relay
	Queue int    // packets on their way in a direction, the next one is dropped; 0: 8192
	Seed  uint64 // of the losses: the same packets of the same traffic vanish. Netem has none.
}

// defaultQueue is 12 MiB of full packets each way: 20 ms of 600 MB/s.
const defaultQueue = 8192

// mtu is that of Ethernet.
const mtu = 1500

// Counts of one direction of a path.
type Counts struct {
	Forwarded uint64 // packets
	Lost      uint64 // packets that Conditions.Loss took; of Netem with those that found the queue full
	Dropped   uint64 // packets that found the queue full; of Netem 0
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
	shut() // before the sides' threads end
}

// New makes a path. What it returns wraps fs.ErrPermission or fs.ErrNotExist where the process may
// not make namespaces or TUN devices, and errors.ErrUnsupported where the kernel has no netem.
func New(o Options) (*Path, error) {
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
	switch o.Link {
	case "", Relay:
		p.link, err = newRelay(p.A, p.B, o)
	case Netem:
		p.link, err = newNetem(p.A, p.B, o)
	default:
		err = fmt.Errorf("link %q: want %s or %s", o.Link, Relay, Netem)
	}
	if err != nil {
		p.A.shut()
		p.B.shut()
		return nil, fmt.Errorf("netpath: %w", err)
	}
	return p, nil
}

// Set changes the conditions for packets from now on. Those on their way arrive as they would have.
func (p *Path) Set(c Conditions) { p.link.set(c) }

// Counts are those of the directions from A to B and from B to A.
func (p *Path) Counts() (ab, ba Counts) { return p.link.counts() }

// Close removes the devices and the namespaces, as soon as no program is in them any more.
func (p *Path) Close() {
	p.close.Do(func() {
		p.link.shut()
		p.A.shut()
		p.B.shut()
	})
}
