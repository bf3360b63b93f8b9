package kvcached

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/devices"
	"github.com/cognitora/dataplane/rdma/verbs"
)

// notBuilt says that this program cannot drive RDMA devices, and names the program that can.
const notBuilt = "this program was built without rdma; make build-rdma makes bin/cgn-kvcached-rdma, which has it " +
	"(needs a C compiler and libibverbs-dev)"

// BuiltWithRDMA tells whether this program can drive RDMA devices.
func BuiltWithRDMA() bool {
	_, err := verbs.Open("", verbs.Options{})
	return !errors.Is(err, rdma.ErrNotBuilt)
}

// leastGrant is the shortest grant. A reader needs time to get the grant and to read the block.
const leastGrant = 100 * time.Millisecond

func (c *Config) validateRDMA(p *problems) {
	r := &c.RDMA
	if _, err := r.trusted(); err != nil {
		p.add("rdma.trusted_networks", "%v", err)
	}
	if r.MinBlock < 0 || r.MinBlock > block.MaxPayload {
		p.add("rdma.min_block", "%s: must be 0 to %s, the largest block", r.MinBlock, config.Size(block.MaxPayload))
	}
	if r.Grant.Std() < leastGrant || r.Grant.Std() > time.Minute {
		p.add("rdma.grant", "%s: must be %s to 1m", r.Grant, leastGrant)
	}
	if err := r.checkDevices(); err != nil {
		p.add("rdma.devices", "%v", err)
	}
	c.validateLanes(p)
}

// deviceName matches the kernel's names of devices.
var deviceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}$`)

func (c *RDMAConfig) checkDevices() error {
	if len(c.Devices) > wire.MaxRails {
		return fmt.Errorf("%d names: at most %d devices are used", len(c.Devices), wire.MaxRails)
	}
	for i, name := range c.Devices {
		switch {
		case name == transport.AnyCard && len(c.Devices) > 1:
			return errors.New("auto stands for all there are, and other names beside it; give it alone, or names")
		case name != transport.AnyCard && strings.EqualFold(name, transport.AnyCard):
			return fmt.Errorf("%q is written auto", name)
		case !deviceName.MatchString(name):
			return fmt.Errorf("%q is no name of a device; cgn-ctl rdma devices lists those of this host, such "+
				"as mlx5_0", name)
		case slices.Contains(c.Devices[:i], name):
			return fmt.Errorf("%q is named twice", name)
		}
	}
	return nil
}

// validateLanes rejects a demand for RDMA in a configuration without RDMA. validateLanes also
// rejects a peer that is named twice or that is this cache.
func (c *Config) validateLanes(p *problems) {
	c.checkLane(p, "fleet.lane", c.Fleet.Lane)
	named := map[string]int{}
	for i, peer := range c.Fleet.Peers {
		at := fmt.Sprintf("fleet.peers[%d]", i)
		c.checkLane(p, at+".lane", peer.Lane)
		if first, there := named[peer.Cache]; there {
			p.add(at+".cache", "%q is that of fleet.peers[%d], too; give each cache one lane", peer.Cache, first)
		} else {
			named[peer.Cache] = i
		}
		if peer.Cache == c.cacheID() {
			p.add(at+".cache", "%q is this cache itself (kvcached.cache_id, or the host's name); name another",
				peer.Cache)
		}
	}
}

func (c *Config) checkLane(p *problems, field, lane string) {
	switch {
	case lane != string(transport.RDMA):
	case len(c.RDMA.Devices) == 0:
		p.add(field, "rdma, and %s", noDevices())
	case !c.inFleet():
		p.add(field, "rdma, and this cache knows no other: give etcd.endpoints and quic.listen")
	}
}

// adviseRDMA warns of settings in [rdma] that have no effect or allow more than is probably meant.
func (c *Config) adviseRDMA() (notes []string) {
	r := &c.RDMA
	all, _ := r.trusted()
	for i, p := range all {
		if p.Bits() == 0 {
			notes = append(notes, fmt.Sprintf("rdma.trusted_networks[%d], %s, is every network there is: what goes "+
				"between RDMA devices can be seen and changed on the way; give the networks of the devices alone", i,
				p))
		}
	}
	switch {
	case len(r.Devices) == 0 && len(r.Trusted) > 0:
		notes = append(notes, "rdma.trusted_networks has networks, and there is no RDMA: "+noDevices())
	case len(r.Devices) == 0:
	case !c.inFleet() && c.QUIC.Listen == "" && c.QUIC.tlsLane() == "":
		notes = append(notes, "rdma.devices names devices, and none is opened, as this cache knows no other and no "+
			"other reaches it; give etcd.endpoints and quic.listen")
	case c.Fleet.Lane == string(transport.RDMA) || len(r.Trusted) > 0 && c.mayReadByRDMA():
	case !c.mayReadByRDMA():
		notes = append(notes, "rdma.devices names devices, and fleet.lane is "+c.Fleet.Lane+": this cache reads no "+
			"block over them; each locks kvcached.ram all the same, and other caches may read this one's over them")
	default:
		but := ""
		if c.demandsRDMA() {
			but = " but of caches whose [[fleet.peers]] has lane = rdma"
		}
		notes = append(notes, "rdma.devices names devices, and rdma.trusted_networks is empty: no block comes "+
			"over them"+but+"; give the networks whose hosts may all see and change what goes there, or "+
			"fleet.lane = rdma")
	}
	return notes
}

// noDevices is the advice for an empty rdma.devices.
func noDevices() string {
	if !BuiltWithRDMA() {
		return notBuilt
	}
	return "rdma.devices names none; give their names, or auto for all (cgn-ctl rdma check says what this host has)"
}

// mayReadByRDMA tells whether the lane of some cache allows RDMA.
func (c *Config) mayReadByRDMA() bool {
	may := func(lane string) bool { return lane == string(transport.RDMA) || lane == string(transport.Auto) }
	return may(c.Fleet.Lane) || slices.ContainsFunc(c.Fleet.Peers, func(p PeerConfig) bool { return may(p.Lane) })
}

// demandsRDMA tells whether the lane of some cache demands RDMA on any network.
func (c *Config) demandsRDMA() bool {
	return c.Fleet.Lane == string(transport.RDMA) ||
		slices.ContainsFunc(c.Fleet.Peers, func(p PeerConfig) bool { return p.Lane == string(transport.RDMA) })
}

// trusted parses rdma.trusted_networks.
func (c *RDMAConfig) trusted() (out []netip.Prefix, err error) {
	for _, text := range c.Trusted {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no network; write it as 10.1.0.0/16 or fd00:1::/64", text)
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q holds IPv4 addresses as IPv6; write it as %s", text,
				netip.PrefixFrom(p.Addr().Unmap(), max(0, p.Bits()-96)).Masked())
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%q is an address; its network is %s", text, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

// examineDevices rejects rdma.devices in a program that was built without RDMA.
func (c *Config) examineDevices(p *problems) {
	if len(c.RDMA.Devices) > 0 && !BuiltWithRDMA() {
		p.add("rdma.devices", "%s; or give none", notBuilt)
	}
}

// openDevices opens the RDMA devices that are present. If a device cannot be opened, the log and
// cgn-ctl kv peers say why, and the daemon tries again.
func (d *Daemon) openDevices() error {
	c := &d.config.RDMA
	if len(c.Devices) == 0 || !d.config.inFleet() && d.config.QUIC.Listen == "" && d.config.QUIC.tlsLane() == "" {
		return nil
	}
	trusted, err := c.trusted()
	if err != nil {
		return fmt.Errorf("rdma.trusted_networks: %w", err)
	}
	arena := d.store.Arena()
	d.rails, err = transport.NewRails(transport.RailsOptions{
		Wanted: c.Devices, Present: devicesPresent, Open: func(name string) (rdma.Device, error) {
			return openDevice(name, trusted)
		},
		Memory: arena.Slice(0, int(arena.Size())), Trusted: trusted,
		GrantAny: d.config.Fleet.Lane == string(transport.RDMA), Demanded: d.config.demandsRDMA(), Logger: d.log,
	})
	return wrapped("rdma", err)
}

// closeDevices closes the RDMA devices, which also unlocks the arena's memory.
func (d *Daemon) closeDevices(ctx context.Context) error {
	if d.rails == nil {
		return nil
	}
	return d.aroundDevices(ctx, d.rails.Close)
}

// errStuckDevice says that the drain went on without waiting for an RDMA device.
var errStuckDevice = errors.New("kvcached: an RDMA device, or its driver, does not answer; the memory of blocks " +
	"stays as it is until this process has ended")

// aroundDevices waits for f until deviceLimit after the end of ctx. f ends requests or connections
// that use RDMA devices. If f fails, the arena stays mapped, because a device may still access its
// memory until the process ends.
func (d *Daemon) aroundDevices(ctx context.Context, f func() error) error {
	if d.rails == nil {
		return f()
	}
	err := within(ctx, deviceLimit, errStuckDevice, f)
	if err != nil {
		d.store.Arena().Keep()
	}
	if errors.Is(err, errStuckDevice) {
		d.stuck.Store(true)
	}
	return err
}

// ended waits for the parts of the daemon. The wait is limited to deviceLimit if a device is stuck,
// because a part may wait for the device.
func (d *Daemon) ended(wait func() error) error {
	if !d.stuck.Load() {
		return wait()
	}
	over, end := context.WithCancel(context.Background())
	end()
	return within(over, deviceLimit, errStuckDevice, wait)
}

// deviceFolder is the kernel's list of RDMA devices.
const deviceFolder = "/sys/class/infiniband"

// devicesPresent returns the inode of each RDMA device of this host by name. A device that was
// removed and added again has another inode.
func devicesPresent() map[string]string {
	entries, err := os.ReadDir(deviceFolder)
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(deviceFolder, e.Name()), &st) == nil {
			out[e.Name()] = fmt.Sprint(st.Ino)
		}
	}
	return out
}

// openDevice opens a port of a device. A port with an address in one of the networks is preferred,
// then an active port.
func openDevice(name string, networks []netip.Prefix) (rdma.Device, error) {
	var o verbs.Options
	for _, dev := range devices.Discover("/") {
		if dev.Name != name {
			continue
		}
		port, gid, ok := dev.RoCE(networks...)
		if !ok {
			port, gid, ok = dev.RoCE()
		}
		if ok {
			o.Port, o.Address = port, gid.Address()
		}
	}
	return verbs.Open(name, o)
}
