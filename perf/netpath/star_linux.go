package netpath

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	tcx "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// device is the name of the end of a Path or Star in a namespace.
const device = "path0"

// vethPeer is VETH_INFO_PEER of linux/veth.h.
const vethPeer = 1

// mostHosts is the largest number of hosts of a Star. Each host has a network of its own in
// 10.77.0.0/16.
const mostHosts = 64

// Star has one namespace, the hub, and several others, the hosts. A pair of veth devices connects
// each host to the hub. Hosts are not connected to each other.
type Star struct {
	Hub   *Side
	Hosts []*Host
}

// Host is one of the hosts of a Star.
type Host struct {
	*Side
	Hub netip.Addr // address of the hub for this host

	hub    *Side
	device string // the hub's device to this host
	losses []tcx.Link
}

// NewStar makes a hub and n hosts. NewStar's error wraps fs.ErrPermission if the process may not
// make namespaces, and errors.ErrUnsupported if the kernel has no veth.
func NewStar(n int) (*Star, error) {
	if n < 1 || n > mostHosts {
		return nil, fmt.Errorf("netpath: a star of %d hosts: there are 1 to %d", n, mostHosts)
	}
	hub, err := newSide(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return nil, err
	}
	s := &Star{Hub: hub}
	for i := range n {
		h, err := newHost(hub, byte(i+1))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("netpath: %w", err), s.Close())
		}
		s.Hosts = append(s.Hosts, h)
	}
	return s, nil
}

func newHost(hub *Side, number byte) (*Host, error) {
	side, err := newSide(netip.AddrFrom4([4]byte{10, 77, number, 2}))
	if err != nil {
		return nil, err
	}
	h := &Host{Side: side, Hub: netip.AddrFrom4([4]byte{10, 77, number, 1}), hub: hub,
		device: fmt.Sprintf("%s-%d", device, number)}
	if err := h.join(); err != nil {
		side.shut()
		return nil, err
	}
	return h, nil
}

// join makes the pair of devices.
func (h *Host) join() error {
	var there *os.File // the host's namespace
	var err error
	h.Do(func() { there, err = os.Open("/proc/thread-self/ns/net") })
	if err != nil {
		return err
	}
	defer there.Close()
	h.hub.Do(func() {
		if err = veth(h.device, there); err == nil {
			err = configure(h.device, h.Hub, defaultQueue)
		}
	})
	if err == nil {
		h.Do(func() { err = h.configure(defaultQueue) })
	}
	return err
}

// Lose drops the given share of the packets between the host and the hub, in each direction
// independently; 0: none. Lose needs tcx of Linux 6.6.
func (h *Host) Lose(share float64) error {
	if err := h.heal(); err != nil || share <= 0 {
		return err
	}
	program, err := dropper(share)
	if err != nil {
		return err
	}
	defer program.Close() // the links keep the program
	h.hub.Do(func() {
		var d *net.Interface
		if d, err = net.InterfaceByName(h.device); err != nil {
			return
		}
		for _, way := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			var l tcx.Link
			if l, err = tcx.AttachTCX(tcx.TCXOptions{Interface: d.Index, Program: program, Attach: way}); err != nil {
				return
			}
			h.losses = append(h.losses, l)
		}
	})
	if err != nil {
		return errors.Join(fmt.Errorf("netpath: lose packets: %w", err), h.heal())
	}
	return nil
}

func (h *Host) heal() error {
	var errs []error
	for _, l := range h.losses {
		errs = append(errs, l.Close())
	}
	h.losses = nil
	return errors.Join(errs...)
}

// Actions of tcx (enum tcx_action_base).
const (
	tcxNext = -1
	tcxDrop = 2
)

// dropper returns a program that drops the given share of packets.
func dropper(share float64) (*ebpf.Program, error) {
	below := min(share*(1<<32), math.MaxUint32)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "cgn_lose", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.LoadImm(asm.R1, int64(below), asm.DWord),
			asm.JLT.Reg(asm.R0, asm.R1, "drop"),
			asm.Mov.Imm(asm.R0, tcxNext),
			asm.Return(),
			asm.Mov.Imm(asm.R0, tcxDrop).WithSymbol("drop"),
			asm.Return(),
		}})
	if err != nil {
		return nil, fmt.Errorf("netpath: %w", err)
	}
	return p, nil
}

// Close removes the devices and the namespaces as soon as no program is in them. Close's error
// concerns the programs that drop packets, which end with their devices anyway.
func (s *Star) Close() error {
	var errs []error
	for _, h := range s.Hosts {
		errs = append(errs, h.heal())
		h.shut()
	}
	s.Hub.shut()
	return errors.Join(errs...)
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
