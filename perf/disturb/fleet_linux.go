package disturb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/perf/netpath"
	"github.com/cognitora/dataplane/perf/process"
)

// Addresses of the programs in the hub, and ports of the nodes. Each node has its own port, because
// the kernel counts by port.
const (
	etcdAt      = "127.0.0.1:2379"
	routerAt    = "127.0.0.1:8080"
	etcdPort    = 2379
	enginePort  = 8100
	frontPort   = 9100
	readyWithin = time.Minute
)

// fleet holds the programs of one run.
type fleet struct {
	c      *Config
	mode   Mode
	dir    string
	star   *netpath.Star
	etcd   *etcdserver.Server
	door   *netpath.Door // connection to etcd
	groups []*group
	nodes  [][]*process.Process // processes of each node: engine and agent, then hogs
	events *process.Process     // reports the kernel's events to the router; nil without signals
	router *process.Process
	admin  *http.Client
}

// startFleet starts all programs without disturbances, and waits until the router sends to all
// nodes.
func startFleet(ctx context.Context, c *Config, m Mode, dir string, groups controlGroups) (*fleet, error) {
	f := &fleet{c: c, mode: m, dir: dir}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", f.path("admin.sock"))
	}
	f.admin = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dial}}
	err := f.start(groups)
	if err == nil {
		err = f.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.stop())
	}
	return f, nil
}

func (f *fleet) path(name string) string { return filepath.Join(f.dir, name) }

// bin returns the path of one of the project's programs.
func (f *fleet) bin(name string) string { return filepath.Join(f.c.Bin, name) }

// pins returns the folder where the agents of this run pin their programs.
func pins() string { return fmt.Sprintf("%s/%s%d", pinRoot, namePrefix, os.Getpid()) }

// Names of objects outside this process have the prefix and the process id.
const (
	pinRoot    = "/sys/fs/bpf"
	namePrefix = "cgn-disturb-"
)

func (f *fleet) start(groups controlGroups) (err error) {
	if f.star, err = netpath.NewStar(f.c.Nodes); err != nil {
		return err
	}
	if f.etcd, err = etcdserver.Start(f.path("etcd"), "127.0.0.1:0"); err != nil {
		return err
	}
	if f.door, err = f.star.Hub.Door(netip.AddrPortFrom(netip.IPv4Unspecified(), etcdPort),
		f.etcd.Endpoint()); err != nil {
		return err
	}
	for i := range f.star.Hosts {
		if err := f.startNode(i, groups); err != nil {
			return err
		}
	}
	if err := os.WriteFile(f.path("policy.json"), []byte(f.mode.policy), 0o600); err != nil {
		return err
	}
	return f.startRouter()
}

func (f *fleet) startRouter() (err error) {
	argv := []string{f.bin("cgn-router"), "--listen", routerAt, "--admin", "unix://" + f.path("admin.sock"),
		"--etcd", "http://" + etcdAt,
		"--policy-file", f.path("policy.json"), "--drain-delay", "0s", "--drain-timeout", "0s",
		"--router.watch_nodes=" + strconv.FormatBool(f.mode.signals)}
	if f.mode.signals {
		f.events, err = startIn(f.star.Hub, f.dir, "events", nil, f.bin("cgn-ctl"), "bpf", "serve", "--root", pins(),
			"--socket", f.path("events.sock"))
		if err != nil {
			return err
		}
		argv = append(argv, "--kernel-events", f.path("events.sock"))
	}
	f.router, err = startIn(f.star.Hub, f.dir, "router", nil, argv...)
	return err
}

// startIn starts a program in a namespace.
func startIn(side *netpath.Side, dir, name string, env []string, argv ...string) (p *process.Process, err error) {
	side.Do(func() { p, err = process.Start(dir, name, argv, env) })
	return p, err
}

// startNode starts an engine and its agent.
func (f *fleet) startNode(i int, groups controlGroups) error {
	h, id := f.star.Hosts[i], nodeID(i)
	g, err := groups.make(fmt.Sprintf("%s%d-%s", namePrefix, os.Getpid(), id), nodeCPU)
	if err != nil {
		return err
	}
	f.groups = append(f.groups, g)
	f.nodes = append(f.nodes, nil)
	engine := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(enginePort+i)).String()
	sim := g.within(f.bin("cgn-ctl"), "sim", "--listen", engine, "--step-cpu", stepCPU.String(),
		"--decode-step", decodeStep.String(),
		"--prefill-rate", strconv.Itoa(prefillRate), "--max-seqs", strconv.Itoa(maxConcurrent), "--cache-blocks",
		"65536", "--seed", strconv.Itoa(i))
	telemetry := "off"
	if f.mode.signals {
		telemetry = "bpf"
	}
	agent := g.within(f.bin("cgn-agent"), "--node-id", id, "--engine", "http://"+engine,
		"--max-concurrent", strconv.Itoa(maxConcurrent),
		"--listen", netip.AddrPortFrom(h.Addr, uint16(frontPort+i)).String(), "--insecure-listen",
		"--admin", "unix://"+f.path(id+".sock"), "--etcd", "http://"+netip.AddrPortFrom(h.Hub, etcdPort).String(),
		"--telemetry", telemetry, "--agent.drain_delay", "0s", "--drain-timeout", "0s")
	env := []string{"CGN_TELEMETRY_BPF_ROOT=" + pins(), "CGN_GPU_NVML=off"}
	for name, argv := range map[string][]string{"engine": sim, "agent": agent} {
		p, err := startIn(h.Side, f.dir, id+"-"+name, env, argv...)
		if err != nil {
			return err
		}
		f.nodes[i] = append(f.nodes[i], p)
	}
	return nil
}

// disturb starts the hogs and the loss.
func (f *fleet) disturb() error {
	for i := range f.c.Hogs {
		p, err := startIn(f.star.Hosts[hogged].Side, f.dir, fmt.Sprintf("hog-%d", i), nil,
			f.groups[hogged].within("/bin/sh", "-c", "while :; do :; done")...)
		if err != nil {
			return err
		}
		f.nodes[hogged] = append(f.nodes[hogged], p)
	}
	return f.star.Hosts[lossy].Lose(f.c.Loss)
}

// page returns a page of the router's admin port.
func (f *fleet) page(path string) ([]byte, error) {
	r, err := f.admin.Get("http://admin" + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	return io.ReadAll(io.LimitReader(r.Body, 16<<20))
}

// fleetView holds the needed parts of /debug/fleet.
type fleetView struct {
	Nodes []struct {
		ID       string
		Eligible bool
		Signals  struct {
			CPU *float64 `json:"cpu_pct"` // known after the agent has found its engine's processes
		}
	}
}

func (f *fleet) awaitReady(ctx context.Context) error {
	deadline := time.Now().Add(readyWithin)
	for ctx.Err() == nil {
		text, err := f.page("/debug/fleet")
		var v fleetView
		if err == nil {
			err = json.Unmarshal(text, &v)
		}
		ready := 0
		for _, n := range v.Nodes {
			if n.Eligible && (!f.mode.signals || n.Signals.CPU != nil) {
				ready++
			}
		}
		if err == nil && ready == f.c.Nodes {
			return nil
		}
		if time.Now().After(deadline) {
			return f.router.Explain(fmt.Errorf("%d of %d nodes are ready (%v): %s", ready, f.c.Nodes, err, text))
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ctx.Err()
}

// stop ends all programs and removes what they left.
func (f *fleet) stop() error {
	var wg sync.WaitGroup
	for _, p := range []*process.Process{f.router, f.events} {
		if p != nil {
			wg.Go(p.Stop)
		}
	}
	for _, n := range f.nodes {
		for _, p := range n {
			wg.Go(p.Stop)
		}
	}
	wg.Wait()
	f.admin.CloseIdleConnections()
	if f.door != nil {
		f.door.Close()
	}
	if f.etcd != nil {
		f.etcd.Close()
	}
	var errs []error
	if f.star != nil {
		errs = append(errs, f.star.Close())
	}
	for _, g := range f.groups {
		errs = append(errs, g.remove())
	}
	return errors.Join(errs...)
}
