package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/pki"
)

// prepareTelemetry makes one telemetry for all nodes.
func (a *Agent) prepareTelemetry() {
	o := telemetry.Options{
		Open: a.peers.await(a.config.Telemetry.open()), Interval: a.config.Telemetry.Interval.Std(),
		Opened: releaseStart, Tick: a.offer, Logger: a.log,
	}
	for _, n := range a.nodes {
		t := telemetry.Target{Name: n.id(), FrontPort: portNumber(n.listener.Addr()), EngineProcess: n.engineProcess}
		if at := n.engine.Endpoint(); at.Network == "tcp" && local(at.Addr) {
			_, port, _ := net.SplitHostPort(at.Addr)
			number, _ := strconv.ParseUint(port, 10, 16)
			t.EnginePort = uint16(number)
		}
		o.Targets = append(o.Targets, t)
	}
	a.telemetry = telemetry.New(o)
}

// preparePush makes the push server, if etcd can announce its address.
func (a *Agent) preparePush() (err error) {
	at := a.config.pushListen(a.nodes[0].unit)
	if at == "" {
		return nil
	}
	if a.pushAt, err = listen.OpenFor("agent.push", "--push", at); err != nil {
		return err
	}
	o := push.Options{Identity: a.identity, Logger: a.log, Audit: a.audit}
	if a.config.authenticates() {
		o.Roles = []pki.Role{pki.Router, pki.Ctl}
	}
	a.push = push.New(o)
	return nil
}

// engineProcess finds the root of the engine's processes; 0: the engine does not run now.
func (n *node) engineProcess() (pid int, err error) {
	if pid, ok := n.engine.PID(); ok {
		return pid, nil
	}
	if file := n.unit.Engine.PIDFile; file != "" {
		if pid, err = readPID(file); err != nil {
			err = fmt.Errorf("%s: %w", n.unit.name("pid_file"), err)
		}
		return pid, err
	}
	_, port := n.agent.telemetry.Ports(n.index)
	if port == 0 {
		return 0, fmt.Errorf("the engine at %s is on another host, or behind a socket: name a file with its process "+
			"id in %s", n.engine.URL(), n.unit.name("pid_file"))
	}
	if pid, err = telemetry.Listener(port); errors.Is(err, telemetry.ErrUnseen) {
		err = fmt.Errorf("%w, or name a file with its number in %s", err, n.unit.name("pid_file"))
	}
	return pid, err
}

func readPID(file string) (int, error) {
	b, err := os.ReadFile(file)
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(b)))
	if err := errors.Join(err, err2); err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s holds no process id", file)
	}
	return pid, nil
}

// local tells whether the address host:port is on this host.
func local(at string) bool {
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return strings.EqualFold(host, "localhost") || strings.EqualFold(host, hostname())
	}
	own, _ := net.InterfaceAddrs()
	return ip.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

func portNumber(addr net.Addr) uint16 {
	n, _ := strconv.ParseUint(portOf(addr), 10, 16) // 0 for a socket
	return uint16(n)
}

// offer gives routers the latest load of every node, if any router follows, and tells whether a
// load has changed. Only the goroutine that runs the telemetry calls offer.
func (a *Agent) offer() (moved bool) {
	switch {
	case a.push == nil:
		return false
	case !a.push.Following():
		return a.push.Offer(time.Time{}, nil)
	}
	now := time.Now()
	a.host.read(now, &a.latest)
	a.readings = a.readings[:0]
	for _, n := range a.nodes {
		a.readings = append(a.readings, load.Reading{Node: n.id(), Load: n.load(now, &a.latest)})
	}
	return a.push.Offer(now, a.readings)
}

// runTelemetry reads the kernel's figures and pushes load to routers. Without a source of kernel
// figures, runTelemetry pushes only the figures of fronts and engines.
func (a *Agent) runTelemetry(ctx context.Context) error {
	if err := a.telemetry.Run(ctx); err != nil {
		return fmt.Errorf("telemetry.kernel: %w", err)
	}
	return nil
}
