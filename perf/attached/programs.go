package attached

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
)

// programs are all programs of package bpf, attached to the whole host under a root of their own.
type programs struct {
	root   string
	set    *bpf.Set
	events *bpf.Events
}

// attach loads and attaches all programs, as an agent does. attach fails if one program cannot be
// attached.
func attach() (p *programs, err error) {
	p = &programs{root: "/sys/fs/bpf/cgn-attached-" + strconv.Itoa(os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	if p.set, err = bpf.Load(bpf.Options{Root: p.root}); err != nil {
		return p, err
	}
	for _, m := range p.set.Missing() {
		return p, fmt.Errorf("not all programs can be attached: %s: %s", m.What, m.Reason)
	}
	p.events, err = bpf.OpenEvents(p.root)
	return p, err
}

// watchPorts starts counting connections to these local addresses at both ends, and reporting their
// events.
func (p *programs) watchPorts(addrs ...string) error {
	for _, a := range addrs {
		addr, err := netip.ParseAddrPort(a)
		if err == nil {
			err = errors.Join(p.set.WatchPort(addr.Port()), p.events.Watch(addr, uint64(addr.Port())))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watchProcess starts counting the CPU time and waits of a process, and those of this process,
// which contains the engines and clients.
func (p *programs) watchProcess(pid int) error {
	return errors.Join(p.set.WatchProcesses(pid), p.set.WatchProcesses(os.Getpid()))
}

// remove removes the programs from the kernel.
func (p *programs) remove() error {
	var errs []error
	if p.events != nil {
		errs = append(errs, p.events.Close())
	}
	if p.set != nil {
		errs = append(errs, p.set.Close())
	}
	_, err := bpf.Clean(p.root)
	return errors.Join(append(errs, err)...)
}

// time makes the kernel measure run times until stop is called.
func (p *programs) time() (stop func(), err error) {
	var on io.Closer
	if on, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return nil, fmt.Errorf("the kernel does not measure programs: %w", err)
	}
	return func() { _ = on.Close() }, nil
}

// cost is the number of runs of a program, and their time.
type cost struct {
	runs uint64
	took time.Duration
}

func (c cost) mean() float64 { return float64(c.took) / float64(max(c.runs, 1)) }

// costs maps programs to their costs.
type costs map[string]cost

// costs returns the costs since the programs were attached.
func (p *programs) costs() (costs, error) {
	all, err := bpf.Programs(p.root)
	if err != nil {
		return nil, err
	}
	c := costs{}
	for _, p := range all {
		c[p.Name] = cost{p.Runs, p.RunTime}
	}
	return c, nil
}

func (c costs) plus(o costs) costs {
	sum := maps.Clone(c)
	for name, v := range o {
		sum[name] = cost{sum[name].runs + v.runs, sum[name].took + v.took}
	}
	return sum
}

func (c costs) minus(o costs) costs {
	d := costs{}
	for name, v := range c {
		d[name] = cost{v.runs - o[name].runs, v.took - o[name].took}
	}
	return d
}

func (c costs) total() (sum time.Duration) {
	for _, v := range c {
		sum += v.took
	}
	return sum
}

func (c costs) programs() (all []Program) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		all = append(all, Program{Name: name, Runs: c[name].runs, Ns: c[name].mean()})
	}
	return all
}

// Load of a busy host, per second.
const (
	busySwitches = 20_000
	busyPackets  = 10_000
)

// busyHost returns the share of a core that the programs would take on a busy host.
func (c costs) busyHost() float64 {
	packets := cost{c["cgn_skb_in"].runs + c["cgn_skb_out"].runs, c["cgn_skb_in"].took + c["cgn_skb_out"].took}
	return (busySwitches*c["cgn_switch"].mean() + busyPackets*packets.mean()) / 1e9
}
