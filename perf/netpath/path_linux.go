package netpath

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Conditions of both directions of a path.
type Conditions struct {
	Delay time.Duration // of each packet each way, beyond what forwarding takes
	Loss  float64       // share of packets that vanish, each way, independently of each other; 0 to 1
	Rate  int64         // bytes per second each way; 0: as fast as packets can be forwarded
}

// Options of New.
type Options struct {
	Conditions
	Queue int    // packets on their way in a direction, the next one is dropped; 0: 8192
	Seed  uint64 // of the losses: the same packets of the same traffic vanish
}

// defaultQueue is 12 MiB of full packets each way: 20 ms of 600 MB/s.
const defaultQueue = 8192

// mtu is that of Ethernet.
const mtu = 1500

// Counts of one direction of a path.
type Counts struct {
	Forwarded uint64 // packets
	Lost      uint64 // packets that Conditions.Loss took
	Dropped   uint64 // packets that found the queue full
}

// Path is two network namespaces with a path between them.
type Path struct {
	A, B *Side

	conditions atomic.Pointer[Conditions]
	ab, ba     *line
	wait       sync.WaitGroup
	close      sync.Once
}

// New makes a path. What it returns wraps fs.ErrPermission or fs.ErrNotExist where the process may not make
// namespaces or TUN devices.
func New(o Options) (*Path, error) {
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	p := &Path{}
	p.conditions.Store(&o.Conditions)
	var err error
	if p.A, err = newSide(netip.AddrFrom4([4]byte{10, 77, 0, 1}), o.Queue); err != nil {
		return nil, err
	}
	if p.B, err = newSide(netip.AddrFrom4([4]byte{10, 77, 0, 2}), o.Queue); err != nil {
		p.A.shut()
		return nil, err
	}
	p.ab = newLine(p.A.tun, p.B.tun, &p.conditions, o.Queue, o.Seed)
	p.ba = newLine(p.B.tun, p.A.tun, &p.conditions, o.Queue, o.Seed+1)
	for _, l := range []*line{p.ab, p.ba} {
		p.wait.Go(l.read)
		p.wait.Go(l.write)
	}
	return p, nil
}

// Set changes the conditions for packets from now on. Those on their way arrive as they would have.
func (p *Path) Set(c Conditions) { p.conditions.Store(&c) }

// Counts are those of the directions from A to B and from B to A.
func (p *Path) Counts() (ab, ba Counts) { return p.ab.counts(), p.ba.counts() }

// Close removes the devices and the namespaces, as soon as no program is in them any more.
func (p *Path) Close() {
	p.close.Do(func() {
		p.A.shut()
		p.B.shut()
		p.wait.Wait()
	})
}
