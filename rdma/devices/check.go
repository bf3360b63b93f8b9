package devices

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Options of Check.
type Options struct {
	// Root is the folder that contains sys, proc and dev. Empty: /.
	Root string
	// PID is the process whose limit of locked memory is checked. 0 stands for this process.
	PID int
	// Arena is how many bytes are to be registered with each device. 0: any limit is reported.
	Arena uint64

	open func(path string) error // for tests; nil: openVerbs
}

// Problem is one problem, its reason and the fix.
type Problem struct {
	Code   Code   `json:"code"`
	What   string `json:"what"`
	Fix    string `json:"fix"`
	Blocks bool   `json:"blocks"` // true if the port is unusable until it is fixed; false for a remark
}

func (p Problem) String() string { return p.What + "; " + p.Fix }

// Code is the machine-readable kind of a problem.
type Code string

// Codes of problems.
const (
	NoDevice     Code = "no_device"     // the kernel has no RDMA device
	NoVerbs      Code = "no_verbs"      // there is no /dev/infiniband/uverbsN
	Denied       Code = "denied"        // the process may not open the device
	PortDown     Code = "port_down"     // the port is not active
	NotEthernet  Code = "not_ethernet"  // the link layer is InfiniBand
	NoGID        Code = "no_gid"        // no RoCE v2 GID has an address that others can reach
	LinkLocal    Code = "link_local"    // all GIDs are link-local
	SmallPackets Code = "small_packets" // packets carry less than the possible 4096 bytes
	Memlock      Code = "memlock"       // the limit of locked memory is too low
)

// Verdict is the result for one port of a device.
type Verdict struct {
	Device   string    `json:"device"`
	Port     int       `json:"port"` // 0: the device has no port
	GID      *GID      `json:"gid"`  // GID under which other hosts reach it; null: none
	Usable   bool      `json:"usable"`
	Problems []Problem `json:"problems"`
}

// Report is the result of Check.
type Report struct {
	Usable  bool      `json:"usable"`  // at least one port is usable
	Host    []Problem `json:"host"`    // problems of the host or the process, which affect all devices
	Memlock int64     `json:"memlock"` // limit of locked memory of the process, in bytes; -1: no limit; 0 with a problem: unknown
	Ports   []Verdict `json:"ports"`
}

// Check reports for each port whether it is usable, and if not, the exact reason and the fix.
func Check(o Options) Report {
	if o.open == nil {
		o.open = openVerbs
	}
	r := Report{Host: []Problem{}, Ports: []Verdict{}}
	all := Discover(o.Root)
	if len(all) == 0 {
		r.Host = append(r.Host, noDevice(o.Root))
	}
	limit, problem := memlock(&o)
	if problem != nil {
		r.Host = append(r.Host, *problem)
	}
	if r.Memlock = int64(min(limit, math.MaxInt64)); limit == unlimited {
		r.Memlock = -1
	}
	blocked := slices.ContainsFunc(r.Host, blocks)
	for i := range all {
		for _, v := range verdicts(&o, &all[i]) {
			v.Usable = !blocked && !slices.ContainsFunc(v.Problems, blocks)
			r.Usable = r.Usable || v.Usable
			r.Ports = append(r.Ports, v)
		}
	}
	return r
}

func blocks(p Problem) bool { return p.Blocks }

// verdicts returns one verdict for each port of d, or a single one if d has no port. A problem of
// the device is a problem of each port.
func verdicts(o *Options, d *Device) []Verdict {
	device := checkVerbs(o, d)
	if len(d.Ports) == 0 {
		return []Verdict{{Device: d.Name, Problems: append(device, Problem{PortDown, "the device has no port",
			"see dmesg for what its driver says", true})}}
	}
	var all []Verdict
	for i := range d.Ports {
		p := &d.Ports[i]
		v := Verdict{Device: d.Name, Port: p.Number, Problems: append([]Problem{}, device...)}
		if p.LinkLayer != "Ethernet" {
			v.Problems = append(v.Problems, Problem{NotEthernet,
				fmt.Sprintf("its link layer is %s, and only RoCE v2 is used", cmp.Or(p.LinkLayer, "not known")),
				"a card of NVIDIA that can do both is told by mlxconfig -d " + cmp.Or(d.PCI, "DEVICE") +
					" set LINK_TYPE_P" +
					fmt.Sprint(p.Number) + "=2, and restarted", true})
			all = append(all, v)
			continue
		}
		if problem := portDown(o.Root, p); problem != nil {
			v.Problems = append(v.Problems, *problem)
		}
		gid, problem := reachable(o.Root, p)
		if problem != nil {
			v.Problems = append(v.Problems, *problem)
		}
		v.GID = gid
		if carried := PathMTU(p.MTU); p.MTU > 0 && carried < 4096 {
			v.Problems = append(v.Problems, Problem{SmallPackets,
				fmt.Sprintf("the MTU of %s is %d: a packet carries %d bytes, and not 4096", p.Netdevs[0], p.MTU,
					carried),
				fmt.Sprintf("ip link set %s mtu 9000, where all hosts and switches take such packets", p.Netdevs[0]),
				carried == 0})
		}
		all = append(all, v)
	}
	return all
}

// checkVerbs checks the character device that libibverbs opens.
func checkVerbs(o *Options, d *Device) []Problem {
	switch {
	case d.Verbs == "" && !there(o.Root, "/sys/class/infiniband_verbs"):
		return []Problem{{NoVerbs, "there is no /dev/infiniband/uverbs* because the module ib_uverbs is not loaded",
			"modprobe ib_uverbs", true}}
	case d.Verbs == "":
		return []Problem{{NoVerbs, "the kernel offers no verbs of this device to programs",
			"see dmesg for what its driver says" + load(d.Driver), true}}
	}
	err := o.open(below(o.Root, d.Verbs))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return []Problem{{NoVerbs, fmt.Sprintf("%s is missing, though the kernel has the device", d.Verbs),
			"a container is given it by --device=" + d.Verbs + "; on a host udev makes it: udevadm trigger " +
				"--subsystem-match=infiniband_verbs", true}}
	case errors.Is(err, os.ErrPermission):
		return []Problem{{Denied, fmt.Sprintf("%s may not be opened by user %d: %v", d.Verbs, os.Geteuid(), cause(err)),
			"chmod 0666 " + d.Verbs + ", which rdma-core's udev rules do, or in a unit: " +
				"DeviceAllow=char-infiniband_verbs rw", true}}
	}
	return []Problem{{NoVerbs, fmt.Sprintf("%s cannot be opened: %v", d.Verbs, cause(err)),
		"see dmesg for what its driver says", true}}
}

// openVerbs opens a device as libibverbs does, and closes it. The check uses nothing of the card.
// openVerbs finds reasons that file modes do not show, such as a cgroup's rules.
func openVerbs(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// cause returns an error without its repetition of the path.
func cause(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Err
	}
	return err
}

// portDown reports why a port is not active, by the state of its network interface.
func portDown(root string, p *Port) *Problem {
	if p.active() {
		return nil
	}
	what := fmt.Sprintf("port %d is %s (%s)", p.Number, cmp.Or(p.State, "not known"), cmp.Or(p.Physical, "not known"))
	if len(p.Netdevs) == 0 {
		return &Problem{PortDown, what + ", and no network interface is known to be its own",
			"look for it with rdma link, then ip link set NETDEV up", true}
	}
	netdev := p.Netdevs[0]
	dir := below(root, "/sys/class/net", netdev)
	if !up(text(dir, "flags")) {
		return &Problem{PortDown, what + ": its interface " + netdev + " is down", "ip link set " + netdev + " up",
			true}
	}
	return &Problem{PortDown, fmt.Sprintf("%s: its interface %s is up, but its link is %s", what, netdev,
		cmp.Or(text(dir, "operstate"), "not known")),
		"is a cable plugged in, and the other end up? ethtool " + netdev + " says what the card sees", true}
}

// reachable picks the GID by which others reach a port. A link-local GID stays in the table after
// the interface has lost that address, or if it never had it.
func reachable(root string, p *Port) (*GID, *Problem) {
	g, ok := p.RoCE()
	netdev := "NETDEV"
	if len(p.Netdevs) > 0 {
		netdev = p.Netdevs[0]
	}
	fix := fmt.Sprintf("ip addr add ADDRESS/PREFIX dev %s", netdev)
	switch {
	case !ok && len(p.GIDs) > 0:
		return nil, &Problem{NoGID, fmt.Sprintf("it has RoCE v1 only: its GIDs are of type %s (%s)",
			cmp.Or(string(p.GIDs[0].Type), "not known"), p.GIDs[0].Address()),
			"another address does not help: card, firmware and driver have to do RoCE v2, and GIDs of it are then " +
				"there beside these by themselves; " +
				"update firmware and driver, and see their manual for a mode of RoCE that has to be set", true}
	case !ok:
		return nil, &Problem{NoGID, fmt.Sprintf("it has no GID of type RoCE v2: %s has no address", netdev), fix, true}
	case !g.Address().IsLinkLocalUnicast() || g.Address().Is4():
		return &g, nil
	}
	table, _ := read(below(root, "/proc/net/if_inet6"), maxTable)
	if !slices.Contains(parseInet6(string(table), g.Netdev), g.Addr) {
		return nil, &Problem{NoGID, fmt.Sprintf("no GID of type RoCE v2 can be reached: %s has no address, not even "+
			"the one of GID %d", netdev, g.Index), fix, true}
	}
	return &g, &Problem{LinkLocal, fmt.Sprintf("its only address, %s, is link-local: hosts beyond a router do not "+
		"reach it", g.Address()), fix, false}
}

// noDevice reports why the kernel has no device at all.
func noDevice(root string) Problem {
	if cards := silentCards(root); len(cards) > 0 {
		return Problem{NoDevice, fmt.Sprintf("no RDMA device: there is a card of NVIDIA at %s, but the module "+
			"mlx5_ib has not taken it", strings.Join(cards, ", ")), "modprobe mlx5_ib, or see dmesg for why it did not",
			true}
	}
	what := "no RDMA device: /sys/class/infiniband is empty"
	if !there(root, classDir) {
		what = "no RDMA device: there is no /sys/class/infiniband, because no RDMA module is loaded"
	}
	fix := "modprobe mlx5_ib for a ConnectX card; for soft-RoCE modprobe rdma_rxe, then rdma link add rxe0 type rxe " +
		"netdev NETDEV"
	if there(root, "/sys/module/rdma_rxe") {
		fix = "rdma link add rxe0 type rxe netdev NETDEV, as the module rdma_rxe is loaded; modprobe mlx5_ib for a " +
			"ConnectX card"
	}
	return Problem{NoDevice, what, fix, true}
}

// silentCards returns the network functions of NVIDIA (Mellanox) on the PCI bus that are not RDMA
// devices; at most 8.
func silentCards(root string) (all []string) {
	dir := below(root, "/sys/bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if class := text(at, "class"); text(at, "vendor") == "0x15b3" && strings.HasPrefix(class, "0x02") &&
			len(all) < 8 && !there("", at, "infiniband") {
			all = append(all, e.Name())
		}
	}
	return all
}

// load returns the command that loads a driver's verbs; empty: the driver is unknown.
func load(driver string) string {
	switch driver {
	case "":
		return ""
	case "mlx5_core":
		driver = "mlx5_ib"
	}
	return "; modprobe " + driver
}
