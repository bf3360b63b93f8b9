package netpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of linux/pkt_sched.h that golang.org/x/sys/unix does not have.
const (
	netemRate      = 6
	netemLatency64 = 10
	rootQdisc      = math.MaxUint32 // TC_H_ROOT
	qdiscHandle    = 1 << 16
)

// Link is the connection of the two sides in a test.
type Link string

const (
	// Relay is the link of New. This process carries each packet from one TUN device to the other.
	Relay Link = "relay"
	// Netem is a pair of veth devices with sch_netem on both devices, on a kernel that has these.
	// The devices do not segment, so TCP's packets are delayed and lost one by one. A program that
	// lets the kernel segment UDP (UDP_SEGMENT, quic-go's GSO) loses whole batches.
	Netem Link = "netem"
)

// newPath makes a path with a link.
func newPath(l Link, o Options) (*Path, error) {
	if l == Netem {
		return join(o, newNetem)
	}
	return New(o)
}

// netem is a pair of veth devices, each with a qdisc netem at its root.
type netem struct {
	a, b  *Side
	queue int
}

func newNetem(a, b *Side, o Options) (link, error) {
	n := &netem{a, b, o.Queue}
	err := veth(a, device, b)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("%w: the kernel has no veth: %w", errors.ErrUnsupported, err)
	}
	for _, s := range []*Side{a, b} {
		if err == nil {
			s.Do(func() { err = s.configure(o.Queue) })
		}
	}
	if err == nil {
		err = n.change(o.Conditions)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the kernel has no sch_netem: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// ask sends a request to the kernel's rtnetlink, in the namespace of the calling thread, and
// returns the answers without their headers.
func ask(kind, flags int, body []byte) ([][]byte, error) {
	r := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	r.AddRawData(body)
	return r.Execute(unix.NETLINK_ROUTE, 0)
}

// attribute appends a netlink attribute to b.
func attribute(b []byte, kind int, value []byte) []byte {
	return append(b, nl.NewRtAttr(kind, value).Serialize()...)
}

// tcmsg returns struct tcmsg for the root qdisc of the path's device, in the namespace of the
// calling thread.
func tcmsg() ([]byte, error) {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 4, 256)
	for _, v := range []uint32{uint32(d.Index), qdiscHandle, rootQdisc, 0} {
		b = append(b, nl.Uint32Attr(v)...)
	}
	return b, nil
}

// change sets the qdiscs of both sides, and makes them first if needed.
func (n *netem) change(c Conditions) (err error) {
	var options []byte // struct tc_netem_qopt, followed by attributes
	for _, v := range []uint32{0, uint32(n.queue), uint32(c.Loss * math.MaxUint32), 0, 0, 0} {
		options = append(options, nl.Uint32Attr(v)...)
	}
	options = attribute(options, netemLatency64, binary.NativeEndian.AppendUint64(nil, uint64(c.Delay)))
	rate := append(nl.Uint32Attr(uint32(min(c.Rate, math.MaxUint32))), make([]byte, 12)...)
	options = attribute(options, netemRate, rate)
	for _, s := range []*Side{n.a, n.b} {
		s.Do(func() {
			var m []byte
			if m, err = tcmsg(); err == nil {
				m = attribute(m, unix.TCA_KIND, []byte("netem\x00"))
				_, err = ask(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, attribute(m, unix.TCA_OPTIONS,
					options))
			}
		})
		if err != nil {
			return fmt.Errorf("netem: %w", err)
		}
	}
	return nil
}

func (n *netem) set(c Conditions) {
	if err := n.change(c); err != nil {
		panic(err) // a bug, because it accepted other conditions before
	}
}

func (n *netem) counts() (ab, ba Counts) {
	for side, to := range map[*Side]*Counts{n.a: &ab, n.b: &ba} {
		var err error
		side.Do(func() { *to, err = qdiscCounts() })
		if err != nil {
			panic(err) // a bug, because the device belongs to this process
		}
	}
	return ab, ba
}

// qdiscCounts returns struct tc_stats of the qdisc in the calling thread's namespace.
func qdiscCounts() (Counts, error) {
	m, err := tcmsg()
	if err != nil {
		return Counts{}, err
	}
	all, err := ask(unix.RTM_GETQDISC, unix.NLM_F_DUMP, m)
	if err != nil {
		return Counts{}, err
	}
	for _, q := range all {
		if len(q) < len(m) || binary.NativeEndian.Uint32(q[8:]) != qdiscHandle {
			continue
		}
		for rest := q[len(m):]; len(rest) >= 4; {
			n, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
			if n < 4 || n > len(rest) {
				break
			}
			if kind == unix.TCA_STATS && n >= 4+16 {
				return Counts{
					Forwarded: uint64(binary.NativeEndian.Uint32(rest[4+8:])),
					Lost:      uint64(binary.NativeEndian.Uint32(rest[4+12:])),
				}, nil
			}
			rest = rest[min((n+3)&^3, len(rest)):]
		}
	}
	return Counts{}, errors.New("the kernel tells no counts of netem")
}

func (n *netem) shut() {} // the devices end with either namespace
