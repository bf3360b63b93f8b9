// Package devices finds the RDMA devices of this host, reports which of their requirements are
// missing, and reads their counters. The package reads sysfs, partly by
// github.com/Mellanox/rdmamap, and the limits of the process. The package opens a device only to
// check that it may, loads nothing and changes nothing. The package needs no C, and imports nothing
// of this module.
package devices

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"
)

// Bounds of the search; devices beyond them are left out.
const (
	maxDevices = 256
	maxPorts   = 16
	maxGIDs    = 1024 // GIDs of a port; rxe's table has this size
)

// Device is an RDMA device of the kernel.
type Device struct {
	Name     string `json:"name"`   // such as mlx5_0
	Driver   string `json:"driver"` // such as mlx5_core, or rdma_rxe for soft-RoCE; empty: unknown
	Firmware string `json:"firmware,omitempty"`
	PCI      string `json:"pci,omitempty"` // PCI address; empty: it is not on a PCI bus
	NUMANode int    `json:"numa_node"`     // -1: unknown, or the host has only one node
	Verbs    string `json:"verbs"`         // its character device, such as /dev/infiniband/uverbs0; empty: none
	Ports    []Port `json:"ports"`
}

// Port is a port of a device. Ports are counted from 1.
type Port struct {
	Number    int      `json:"port"`
	State     string   `json:"state"`          // ACTIVE, DOWN, INIT, ARMED …; empty: unknown
	Physical  string   `json:"physical_state"` // LinkUp, Polling, Disabled …
	LinkLayer string   `json:"link_layer"`     // Ethernet or InfiniBand
	Rate      float64  `json:"rate_gbit"`      // Gbit/s, as negotiated, or for soft-RoCE as claimed; 0: unknown
	Netdevs   []string `json:"netdevs"`        // network interfaces of its GIDs, the port's own first
	MTU       int      `json:"netdev_mtu"`     // bytes, of the first interface in Netdevs; 0: unknown
	GIDs      []GID    `json:"gids"`           // by index
}

// GID is an address of a port for other ports.
type GID struct {
	Index  int        `json:"index"` // index in the port's table, which changes when addresses come and go
	Addr   netip.Addr `json:"gid"`
	Type   GIDType    `json:"type"`
	Netdev string     `json:"netdev,omitempty"`
}

// GIDType is the packet format between two GIDs.
type GIDType string

// The types of GIDs have the names of sysfs, where RoCE v1 and InfiniBand share a name.
const (
	RoCEv1 GIDType = "IB/RoCE v1"
	RoCEv2 GIDType = "RoCE v2"
)

// Discover lists the devices by name. root is the folder that contains sys, proc and dev; empty: /.
// A host without devices is no error; Check reports why the host has no devices.
func Discover(root string) []Device {
	var names []string
	mapped(root, func() { names = rdmamap.GetRdmaDeviceList() })
	slices.Sort(names)
	var all []Device
	for _, name := range names[:min(len(names), maxDevices)] {
		all = append(all, discover(root, name))
	}
	return all
}

func discover(root, name string) Device {
	dir := below(root, classDir, name)
	d := Device{Name: name, Firmware: text(dir, "fw_ver"), Driver: linked(dir, "device/driver"), NUMANode: -1,
		Ports: []Port{}}
	if d.Driver == "" && text(dir, "parent") != "" {
		d.Driver = "rdma_rxe" // rxe has no device link, and it alone has the file parent, with the interface's name
	}
	if function := linked(dir, "device"); strings.Count(function, ":") == 2 {
		d.PCI = function
	}
	if n, err := strconv.Atoi(text(dir, "device/numa_node")); err == nil {
		d.NUMANode = max(n, -1)
	}
	var files, ports []string
	mapped(root, func() { files, ports = rdmamap.GetRdmaCharDevices(name), rdmamap.GetPorts(name) })
	for _, f := range files {
		if base := filepath.Base(f); strings.HasPrefix(base, rdmamap.RdmaUverbsFilxPrefix) {
			d.Verbs = "/dev/infiniband/" + base
		}
	}
	var numbers []int
	for _, p := range ports {
		if n, err := strconv.Atoi(p); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers[:min(len(numbers), maxPorts)] {
		d.Ports = append(d.Ports, port(root, filepath.Join(dir, "ports", strconv.Itoa(n)), n))
	}
	return d
}

func port(root, dir string, number int) Port {
	p := Port{
		Number: number, State: parseState(text(dir, "state")), Physical: parseState(text(dir, "phys_state")),
		LinkLayer: text(dir, "link_layer"), Rate: parseRate(text(dir, "rate")), Netdevs: []string{}, GIDs: gids(dir),
	}
	for _, g := range p.GIDs {
		if g.Netdev != "" && !slices.Contains(p.Netdevs, g.Netdev) {
			p.Netdevs = append(p.Netdevs, g.Netdev)
		}
	}
	if parent := text(dir, "../../parent"); len(p.Netdevs) == 0 && parent != "" {
		p.Netdevs = []string{parent}
	}
	if len(p.Netdevs) > 0 {
		p.MTU, _ = strconv.Atoi(text(below(root, "/sys/class/net", p.Netdevs[0]), "mtu"))
	}
	return p
}

// gids reads a port's table. The table's empty rows are zero and have no type.
func gids(dir string) []GID {
	all := []GID{}
	for _, i := range numbered(filepath.Join(dir, "gids"), maxGIDs) {
		row := strconv.Itoa(i)
		addr, ok := parseGID(text(dir, "gids/"+row))
		if !ok || addr.IsUnspecified() {
			continue
		}
		g := GID{Index: i, Addr: addr, Type: GIDType(text(dir, "gid_attrs/types/"+row)),
			Netdev: text(dir, "gid_attrs/ndevs/"+row)}
		if g.Type != "" {
			all = append(all, g)
		}
	}
	return all
}

// RoCE picks the GID under which other hosts reach this port, among the RoCE v2 GIDs whose address
// lies in one of networks; without networks any address will do. An IPv4 address is better than a
// global IPv6 address, and a link-local one is worst, because it reaches only as far as the next
// router. The index decides only between two of a kind, because it depends on the order in which
// addresses were added.
func (p *Port) RoCE(networks ...netip.Prefix) (best GID, ok bool) {
	for _, g := range p.GIDs {
		in := func(n netip.Prefix) bool { return n.Contains(g.Address()) }
		if g.Type != RoCEv2 || len(networks) > 0 && !slices.ContainsFunc(networks, in) {
			continue
		}
		if !ok || g.reach() > best.reach() {
			best, ok = g, true
		}
	}
	return best, ok
}

// RoCE picks the port under which other hosts reach the device, and its GID (Port.RoCE). RoCE takes
// the first active port that has a GID, or else the first port that has one.
func (d *Device) RoCE(networks ...netip.Prefix) (number int, best GID, ok bool) {
	active := false
	for i := range d.Ports {
		p := &d.Ports[i]
		if g, has := p.RoCE(networks...); has && (!ok || !active && p.active()) {
			number, best, ok, active = p.Number, g, true, p.active()
		}
	}
	return number, best, ok
}

func (p *Port) active() bool { return p.State == "ACTIVE" }

// Address returns the GID as an address of the interface. An IPv4-mapped GID becomes an IPv4
// address.
func (g GID) Address() netip.Addr { return g.Addr.Unmap() }

func (g GID) reach() int {
	switch a := g.Address(); {
	case a.IsLinkLocalUnicast():
		return 1
	case a.Is6():
		return 2
	}
	return 3
}

// PathMTU returns how many bytes a RoCE packet carries over an interface with this MTU. The kernel
// subtracts 96 bytes of headers, and rounds down to a power of two from 256 to 4096. 0: the MTU is
// too small.
func PathMTU(mtu int) int {
	for size := 4096; size >= 256; size /= 2 {
		if mtu-96 >= size {
			return size
		}
	}
	return 0
}
