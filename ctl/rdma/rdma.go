// Package rdma has the commands on a host's RDMA devices.
package rdma

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/config"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/rdma/devices"
)

// host has the commands for the RDMA devices of this host.
type host struct {
	*cli.App
	cache.Daemon
	root string
}

// Command is cgn-ctl rdma.
func Command(a *cli.App) *cobra.Command {
	r := &host{App: a}
	c := cli.Group("rdma", "Look at this host's RDMA devices, say what they lack, and have a cache let go of one",
		newDevices(r), newCheck(r), newRelease(r))
	c.Long = "devices and check look at the host below --root. check also asks the cache daemon at --sock, and " +
		"release asks it to act: the one of this host, unless\n" +
		"--address gives another, whose devices are those of the host that it is on."
	r.Flags(c.PersistentFlags(), a.Getenv)
	c.PersistentFlags().StringVar(&r.root, "root", "/", "folder with the host's sys, proc and dev, such as /host in "+
		"a container")
	return c
}

const rootHint = "give the folder with the host's sys, proc and dev, such as /host in a container; without --root " +
	"it is /"

// rooted returns an error if there is nothing to read below --root.
func (r *host) rooted() error {
	if info, err := os.Stat(r.root); err != nil || !info.IsDir() {
		return cli.WithHint(fmt.Errorf("--root %s: there is no such folder", r.root), rootHint)
	}
	var missing []string
	for _, name := range []string{"sys", "proc"} {
		if info, err := os.Stat(filepath.Join(r.root, name)); err != nil || !info.IsDir() {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return cli.WithHint(fmt.Errorf("--root %s has no %s: is it the host's root?", r.root,
			strings.Join(missing, " and ")), rootHint)
	}
	return nil
}

func newDevices(r *host) *cobra.Command {
	return &cobra.Command{
		Use: "devices", Short: "List RDMA devices with their ports, addresses and drivers", Args: cli.NoArguments,
		Long: "Lists the RDMA devices that the kernel has, a line for each port. NETDEV is the network interface " +
			"that it shares its link with, MTU that\n" +
			"interface's, ADDRESS the one that other hosts would reach the port by: of its GIDs of type RoCE v2 an " +
			"IPv4 address before a global one of\n" +
			"IPv6, and both before a link-local one. NUMA is the node of the host that the card is next to. -o json " +
			"has all GIDs.",
		Example: "  cgn-ctl rdma devices\n  cgn-ctl rdma devices -o json",
		RunE: func(*cobra.Command, []string) error {
			if err := r.rooted(); err != nil {
				return err
			}
			all := append([]devices.Device{}, devices.Discover(r.root)...)
			return r.Show(all, func(t *cli.Table) { writeDevices(t, all) })
		},
	}
}

func writeDevices(t *cli.Table, all []devices.Device) {
	if len(all) == 0 {
		t.Line("this host has no RDMA device: cgn-ctl rdma check says why")
		return
	}
	t.Row("DEVICE", "PORT", "STATE", "LINK", "GBIT/S", "NETDEV", "MTU", "ADDRESS", "NUMA", "DRIVER", "FIRMWARE")
	for _, d := range all {
		numa := "-"
		if d.NUMANode >= 0 {
			numa = fmt.Sprint(d.NUMANode)
		}
		if len(d.Ports) == 0 {
			t.Row(d.Name, "-", "-", "-", "-", "-", "-", "-", numa, cell.Dash(d.Driver), cell.Dash(d.Firmware))
		}
		for _, p := range d.Ports {
			address := "-"
			if g, ok := p.RoCE(); ok {
				address = g.Address().String()
			}
			t.Row(d.Name, p.Number, cell.Dash(p.State), cell.Dash(p.LinkLayer), p.Rate,
				cell.Dash(strings.Join(p.Netdevs, ",")), cell.Limit(p.MTU), address, numa,
				cell.Dash(d.Driver), cell.Dash(d.Firmware))
		}
	}
}

// textFlag is a flag whose value parses itself.
type textFlag struct {
	encoding.TextUnmarshaler
	kind string
}

func (f textFlag) Set(text string) error { return f.UnmarshalText([]byte(text)) }
func (f textFlag) Type() string          { return f.kind }
func (f textFlag) String() string        { return "" }

func newCheck(r *host) *cobra.Command {
	var arena config.Size
	var pid int
	c := &cobra.Command{
		Use: "check", Short: "Say which RDMA ports can be used and, where one cannot, exactly why and what to do",
		Args: cli.NoArguments,
		Long: "Looks at each port of each RDMA device, and fails if none can be used. A cache reads other hosts' " +
			"memory over ports that are active, have an\n" +
			"address of RoCE v2 and a device file that may be opened, and if it may lock all of its arena in memory " +
			"(memlock). Each device of a daemon\n" +
			"locks the arena once more: with two, --arena takes twice its size.\n\n" +
			"The limit of locked memory is that of the process --pid; without it, of the cgn-kvcached that listens " +
			"on the socket; without that, and with --root or\n" +
			"--address, of this very command (DIR/proc/self), which says little of a daemon that systemd starts, and " +
			"is said. Whether a device file may be opened is asked with the rights of this command.\n" +
			"The daemon, with --address that of another host perhaps, is also asked what it makes of its devices. -o " +
			"json: memlock is that limit in bytes, -1 for none; daemon is null where nobody answers.",
		Example: "  cgn-ctl rdma check --arena 64GiB\n  sudo -u cognitora cgn-ctl rdma check --pid $(pidof " +
			"cgn-kvcached) -o json",
		RunE: func(c *cobra.Command, _ []string) error { return r.check(c.Context(), uint64(arena), pid) },
	}
	c.Flags().Var(textFlag{&arena, "size"}, "arena", "bytes that the cache registers with a device, as its --ram, "+
		"such as 64GiB")
	c.Flags().IntVar(&pid, "pid", 0, "process whose limit of locked memory counts; 0: the cache that listens on the "+
		"socket, else this one")
	return c
}

func newRelease(r *host) *cobra.Command {
	return &cobra.Command{
		Use: "release DEV", Short: "Have the cache daemon close an RDMA device, so that it can be taken away",
		Args: cli.OneArgument("DEV"),
		Long: "Asks the cgn-kvcached at --sock, which is this host's, or the one at --address, whatever host that is " +
			"on, to close its context of a device,\n" +
			"and returns when that is done: what is under way over it ends, and\n" +
			"blocks come over QUIC from then on. A device that is not open counts as closed, and that is said. " +
			"Without that the kernel may wait for the daemon for ever: rdma link delete of a soft-RoCE device on\n" +
			"Linux 6.1 does. The daemon opens a device of that name again once the kernel has it anew.",
		Example: "  cgn-ctl rdma release rxe0 && rdma link delete rxe0",
		RunE:    func(c *cobra.Command, args []string) error { return r.release(c.Context(), args[0]) },
	}
}

type released struct {
	Device  string `json:"device"`
	Pairs   uint32 `json:"pairs"`
	WasOpen bool   `json:"was_open"`
	daemon  string
}

func (v *released) write(t *cli.Table) {
	if v.WasOpen {
		t.Line(fmt.Sprintf("%s is closed, and with it %d queue pairs, by %s", v.Device, v.Pairs, v.daemon))
	} else {
		t.Line(v.Device + " was not open: " + v.daemon + " had nothing to close")
	}
}

func (r *host) release(ctx context.Context, device string) error {
	return r.Soon(ctx, func(ctx context.Context, client pb.KvClient) error {
		done, err := client.ReleaseDevice(ctx, &pb.ReleaseDeviceRequest{Device: device})
		switch code := status.Code(err); {
		case code == codes.OK:
			v := &released{device, done.Pairs, !done.WasNotOpen, r.Name()}
			return r.Show(v, v.write)
		case code == codes.NotFound:
			return cli.WithHint(errors.New(status.Convert(err).Message()),
				"cgn-ctl kv peers lists the devices that the daemon uses, cgn-ctl rdma devices those of the host")
		case code == codes.DeadlineExceeded && ctx.Err() == nil: // this deadline is reported by the daemon
			return cli.WithHint(errors.New(status.Convert(err).Message()),
				"nothing new goes over it; ask again, and cgn-ctl kv peers says when it is closed")
		case code == codes.Unimplemented:
			return cli.WithHint(fmt.Errorf("this cache daemon has no device %s to close", device),
				"only a cgn-kvcached that knows RDMA has: make build-rdma makes it")
		}
		return err
	})
}
