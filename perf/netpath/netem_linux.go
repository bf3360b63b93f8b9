package netpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// device is the name of the path's end in either namespace.
const device = "path0"

// Constants of linux/pkt_sched.h and linux/veth.h that golang.org/x/sys/unix does not have.
const (
	vethPeer       = 1
	netemRate      = 6
	netemLatency64 = 10
	rootQdisc      = math.MaxUint32 // TC_H_ROOT
	qdiscHandle    = 1 << 16
)

// netem is a pair of veth devices, each with a qdisc netem at its root.
type netem struct {
	a, b  *Side
	queue int
}

func newNetem(a, b *Side, o Options) (*netem, error) {
	n := &netem{a, b, o.Queue}
	var there *os.File // B's namespace
	var err error
	b.Do(func() { there, err = os.Open("/proc/thread-self/ns/net") })
	if err != nil {
		return nil, err
	}
	defer there.Close()
	a.Do(func() { err = veth(device, there) })
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

// veth makes a pair of devices. One device is in the namespace of the calling thread and has the
// name here. The other device is in the namespace there. The two devices have the same hardware
// address, because a device without ARP sends packets to its own hardware address. Neither device
// accepts TCP segments that are larger than the MTU.
func veth(here string, there *os.File) error {
	end := func(name string, more ...[]byte) []byte {
		b := make([]byte, unix.SizeofIfInfomsg)
		b = attribute(b, unix.IFLA_IFNAME, append([]byte(name), 0))
		b = attribute(b, unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
		b = attribute(b, unix.IFLA_GSO_MAX_SEGS, word(1))
		for _, m := range more {
			b = append(b, m...)
		}
		return b
	}
	peer := end(device, attribute(nil, unix.IFLA_NET_NS_FD, word(uint32(there.Fd()))))
	info := attribute(nil, unix.IFLA_INFO_KIND, []byte("veth\x00"))
	info = attribute(info, unix.IFLA_INFO_DATA, attribute(nil, vethPeer, peer))
	_, err := ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, end(here, attribute(nil, unix.IFLA_LINKINFO,
		info)))
	return err
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
		b = append(b, word(v)...)
	}
	return b, nil
}

// change sets the qdiscs of both sides, and makes them first if needed.
func (n *netem) change(c Conditions) (err error) {
	var options []byte // struct tc_netem_qopt, followed by attributes
	for _, v := range []uint32{0, uint32(n.queue), uint32(c.Loss * math.MaxUint32), 0, 0, 0} {
		options = append(options, word(v)...)
	}
	options = attribute(options, netemLatency64, binary.NativeEndian.AppendUint64(nil, uint64(c.Delay)))
	rate := append(word(uint32(min(c.Rate, math.MaxUint32))), make([]byte, 12)...)
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
		if len(q.Data) < len(m) || binary.NativeEndian.Uint32(q.Data[8:]) != qdiscHandle {
			continue
		}
		for rest := q.Data[len(m):]; len(rest) >= 4; {
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
			rest = rest[min(align(n), len(rest)):]
		}
	}
	return Counts{}, errors.New("the kernel tells no counts of netem")
}

func (n *netem) shut() {} // the devices end with either namespace
