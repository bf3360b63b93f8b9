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
	"github.com/vishvananda/netlink"
)

// device is the name of the end of a Path or Star in a namespace.
const device = "path0"

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
	err := veth(h.hub, h.device, h.Side)
	if err == nil {
		h.hub.Do(func() { err = configure(h.device, h.Hub, defaultQueue) })
	}
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

// hardware is the address of both devices of a pair, because a device without ARP sends packets to
// its own hardware address.
var hardware = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// veth makes a pair of devices: one in the namespace of from with the name here, and one in the
// namespace of to. Neither device accepts TCP segments that are larger than the MTU.
func veth(from *Side, here string, to *Side) error {
	var there *os.File // the namespace of to
	var err error
	to.Do(func() { there, err = os.Open("/proc/thread-self/ns/net") })
	if err != nil {
		return err
	}
	defer there.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.HardwareAddr, attributes.GSOMaxSegs = here, hardware, 1
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: device, PeerHardwareAddr: hardware,
		PeerNamespace: netlink.NsFd(there.Fd())}
	from.Do(func() { err = netlink.LinkAdd(pair) })
	if err != nil {
		return err
	}
	to.Do(func() {
		var d netlink.Link
		if d, err = netlink.LinkByName(device); err == nil {
			err = netlink.LinkSetGSOMaxSegs(d, 1)
		}
	})
	return err
}
