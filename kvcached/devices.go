package kvcached

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/devices"
	"github.com/cognitora/dataplane/rdma/verbs"
)

// withRDMA says which program has what this one lacks.
const withRDMA = "go build -tags rdma ./cmd/cgn-kvcached, with a C compiler and libibverbs-dev, makes one that can"

// leastLease is the shortest lease: to be told of it and to read take a while.
const leastLease = 100 * time.Millisecond

func (c *Config) validateRDMA(p *problems) {
	r := &c.RDMA
	if _, err := r.trusted(); err != nil {
		p.add("rdma.trusted_networks", "%v", err)
	}
	if r.MinBlock < 0 {
		p.add("rdma.min_block", "must be 0 or more")
	}
	if r.Lease.Std() < leastLease || r.Lease.Std() > time.Minute {
		p.add("rdma.lease", "%s: must be %s to 1m", r.Lease, leastLease)
	}
	if slices.Contains(r.Devices, "") {
		p.add("rdma.devices", "a name is empty; cgn-ctl rdma devices lists those of this host")
	}
	if len(r.Devices) > 0 {
		return
	}
	const none = "rdma, and rdma.devices names none; give their names, or auto for all"
	if c.Fleet.Lane == string(transport.RDMA) {
		p.add("fleet.lane", none)
	}
	for i, peer := range c.Fleet.Peers {
		if peer.Lane == string(transport.RDMA) {
			p.add(fmt.Sprintf("fleet.peers[%d].lane", i), none)
		}
	}
}

// trusted parses the networks.
func (c *RDMAConfig) trusted() (out []netip.Prefix, err error) {
	for _, text := range c.Trusted {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no network; write it as 10.1.0.0/16 or fd00:1::/64", text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%q is an address; its network is %s", text, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

// examineDevices refuses devices in a program that cannot drive any.
func (c *Config) examineDevices(p *problems) {
	if len(c.RDMA.Devices) == 0 {
		return
	}
	if _, err := verbs.Open("", verbs.Options{}); errors.Is(err, rdma.ErrNotBuilt) {
		p.add("rdma.devices", "%v; %s; or give none", err, withRDMA)
	}
}

// openDevices opens the RDMA devices, those that are there. What one lacks is in the log and in cgn-ctl kv peers, and it is tried again.
func (d *Daemon) openDevices() error {
	c := &d.config.RDMA
	if len(c.Devices) == 0 || !d.config.inFleet() && d.config.QUIC.Listen == "" && d.config.QUIC.tlsLane() == "" {
		return nil
	}
	trusted, err := c.trusted()
	if err != nil {
		return fmt.Errorf("rdma.trusted_networks: %w", err)
	}
	demanded := d.config.Fleet.Lane == string(transport.RDMA)
	if len(trusted) == 0 && !demanded {
		d.log.Warn("rdma.trusted_networks is empty: devices are open, and RDMA is used only with caches for which fleet.lane or [[fleet.peers]] demands it; what goes over it is neither encrypted nor authenticated")
	}
	arena := d.store.Arena()
	d.rails, err = transport.NewRails(transport.RailsOptions{
		Wanted: c.Devices, Present: devicesPresent, Open: func(name string) (rdma.Device, error) { return openDevice(name, trusted) },
		Memory: arena.Slice(0, int(arena.Size())), Trusted: trusted, LendAny: demanded, Logger: d.log,
	})
	return wrapped("rdma", err)
}

// closeDevices closes them: the arena is not locked any more.
func (d *Daemon) closeDevices(context.Context) error {
	if d.rails == nil {
		return nil
	}
	return d.rails.Close()
}

// deviceFolder is where the kernel lists RDMA devices.
const deviceFolder = "/sys/class/infiniband"

// devicesPresent are the devices of this host. Each has another inode than one before it of its name.
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

// openDevice opens the port of a device that has an address in one of the networks, or else any.
func openDevice(name string, networks []netip.Prefix) (rdma.Device, error) {
	var o verbs.Options
	for _, dev := range devices.Discover("/") {
		for i := range dev.Ports {
			port := &dev.Ports[i]
			if dev.Name != name || o.Port != 0 && len(networks) == 0 {
				continue
			}
			if g, ok := port.RoCE(networks...); ok {
				o.Port, o.Address = port.Number, g.Address()
			}
		}
	}
	return verbs.Open(name, o)
}
