// Package devices finds the RDMA devices of this host, says what they lack to be used, and reads
// what they count. It asks sysfs, github.com/Mellanox/rdmamap and the limits of the process only:
// it opens no device but for a look whether it may, loads nothing and changes nothing. It needs no
// C, and imports nothing of this module.
package devices

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"
)

// Bounds of what is looked at; what a host has beyond them is left out.
const (
	maxDevices = 256
	maxPorts   = 16
	maxGIDs    = 1024 // of a port; rxe has a table of as many
)

// Device is an RDMA device as the kernel has it.
type Device struct {
	Name     string `json:"name"`   // mlx5_0
	Driver   string `json:"driver"` // mlx5_core; rdma_rxe for soft-RoCE; empty: not known
	Firmware string `json:"firmware,omitempty"`
	PCI      string `json:"pci,omitempty"` // address of its function; empty: it is on no PCI bus
	NUMANode int    `json:"numa_node"`     // -1: not known, or the host has one node only
	Verbs    string `json:"verbs"`         // its character device, /dev/infiniband/uverbs0; empty: none
	Ports    []Port `json:"ports"`
}

// Port is one of a device's, counted from 1.
type Port struct {
	Number    int      `json:"port"`
	State     string   `json:"state"`          // ACTIVE, DOWN, INIT, ARMED …; empty: not known
	Physical  string   `json:"physical_state"` // LinkUp, Polling, Disabled …
	LinkLayer string   `json:"link_layer"`     // Ethernet or InfiniBand
	Rate      float64  `json:"rate_gbit"`      // Gbit/s, as the port negotiated it, or for soft-RoCE as it claims; 0: not known
	Netdevs   []string `json:"netdevs"`        // network interfaces that its GIDs are of, the port's own first
	MTU       int      `json:"netdev_mtu"`     // bytes, of the first of Netdevs; 0: not known
	GIDs      []GID    `json:"gids"`           // by index
}

// GID is an address of a port, as other ports reach it.
type GID struct {
	Index  int        `json:"index"` // in the port's table; it moves when addresses come and go
	Addr   netip.Addr `json:"gid"`
	Type   GIDType    `json:"type"`
	Netdev string     `json:"netdev,omitempty"`
}

// GIDType says what packets between two GIDs look like.
type GIDType string

// The types, as sysfs has them. RoCE v1 and InfiniBand share a name there.
const (
	RoCEv1 GIDType = "IB/RoCE v1"
	RoCEv2 GIDType = "RoCE v2"
)

// Discover lists the devices by name. root is where sys, proc and dev are; empty: /. A host without
// devices is no error: Check says why it has none.
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
		d.Driver = "rdma_rxe" // which has no device below it, and alone of all drivers names its interface so
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

// gids reads a port's table, whose empty rows are zero and have no type.
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

// RoCE picks the GID that other hosts reach this port by: of those of type RoCE v2 whose address
// lies in one of networks (none: wherever it lies) an IPv4 address before a global one of IPv6, and
// both before a link-local one, which reaches no further than the next router. The index only
// decides between two of a kind: it depends on the order in which addresses were added.
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

// RoCE picks the port that other hosts reach the device by, and its GID (Port.RoCE): the first that
// is active of those that have one, or else the first of those.
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

// Address is the GID as the interface has it: an IPv4 address where one is mapped.
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

// PathMTU is how many bytes a RoCE packet carries over an interface whose packets have mtu bytes:
// the kernel takes off 96 bytes of headers, and rounds down to a power of two of 256 to 4096. 0:
// too small for any.
func PathMTU(mtu int) int {
	for size := 4096; size >= 256; size /= 2 {
		if mtu-96 >= size {
			return size
		}
	}
	return 0
}
