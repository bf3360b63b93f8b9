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
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
)

// prepareTelemetry makes what looks at the kernel and, where etcd can tell of it, what tells routers.
func (a *Agent) prepareTelemetry() (err error) {
	o := telemetry.Options{
		Open: a.config.Telemetry.open(), Interval: a.config.Telemetry.Interval.Std(), FrontPort: portNumber(a.listener.Addr()),
		EngineProcess: a.engineProcess, Tick: a.offer, Log: a.log,
	}
	if at := a.engine.Endpoint(); at.Network == "tcp" && local(at.Addr) {
		_, port, _ := net.SplitHostPort(at.Addr)
		n, _ := strconv.ParseUint(port, 10, 16)
		o.EnginePort = uint16(n)
	}
	a.telemetry = telemetry.New(o)
	at := a.config.pushListen()
	if at == "" {
		return nil
	}
	if a.pushAt, err = listen.OpenFor("agent.push", "--push", at); err != nil {
		return err
	}
	a.node.PushAddress = a.config.pushAdvertised(a.pushAt.Addr(), a.node.Address)
	return nil
}

// preparePush is called once the certificates are known.
func (a *Agent) preparePush() {
	if a.pushAt == nil {
		return
	}
	o := push.Options{NodeID: a.node.NodeID, Identity: a.identity, Log: a.log}
	if a.config.authenticates() {
		o.Roles = []pki.Role{pki.Router, pki.Ctl}
	}
	a.push = push.New(o)
}

// engineProcess finds the root of the engine's processes; 0: it does not run now.
func (a *Agent) engineProcess() (pid int, err error) {
	if pid, ok := a.engine.PID(); ok {
		return pid, nil
	}
	if file := a.config.Engine.PIDFile; file != "" {
		return readPID(file)
	}
	_, port := a.telemetry.Ports()
	if port == 0 {
		return 0, fmt.Errorf("the engine at %s is on another host, or behind a socket: name a file with its process id in engine.pid_file", a.engine.URL())
	}
	return telemetry.Listener(port)
}

func readPID(file string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("engine.pid_file: %w", err)
	}
	defer f.Close()
	var b [32]byte
	n, err := f.Read(b[:])
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err := errors.Join(err, err2); err != nil || pid <= 0 {
		return 0, fmt.Errorf("engine.pid_file: %s holds no process id", file)
	}
	return pid, nil
}

// local tells whether host:port is on this host.
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
	n, _ := strconv.ParseUint(portOf(addr), 10, 16) // 0 of a socket
	return uint16(n)
}

// measure fills in what is measured of the node now.
func (a *Agent) measure(h *cluster.NodeHealth) {
	r := a.reading(time.Now())
	h.InFlight, h.QueueDepth = r.InFlight, r.Queue
	h.CPUPct, h.RunqUsP99, h.SRTTUsP50, h.RetransPPM = r.CPUPct, r.RunqUsP99, r.SRTTUsP50, r.RetransPPM
	h.SMPct, h.PowerWatts, h.PowerWattsAvg30 = r.SMPct, r.Watts, r.WattsAvg30
	h.KernelAgeMs, h.SMAgeMs, h.PowerAgeMs = age(r.At, r.Kernel), age(r.At, r.SM), age(r.At, r.Power)
}

func age(now, at time.Time) cluster.Gauge {
	if at.IsZero() {
		return cluster.Gauge{}
	}
	return cluster.Known(float64(max(now.Sub(at), 0)) / float64(time.Millisecond))
}

// reading is what routers are told of the node's load.
func (a *Agent) reading(now time.Time) *push.Reading {
	k := a.telemetry.Latest()
	r := &push.Reading{At: now, Kernel: k.At, CPUPct: k.CPUPct, RunqUsP99: k.RunqUsP99, SRTTUsP50: k.SRTTUsP50, RetransPPM: k.RetransPPM}
	r.InFlight, r.Queue = a.inFlight()
	r.SMPct, r.SM = a.smPct()
	r.Watts, r.WattsAvg30, _, r.Power = a.watts()
	return r
}

// offer gives routers the latest reading.
func (a *Agent) offer() {
	if a.push != nil {
		a.push.Offer(a.reading(time.Now()))
	}
}

// runTelemetry looks, and while nothing can be looked at, tells routers of what the front and the engine say.
func (a *Agent) runTelemetry(ctx context.Context) error {
	if err := a.telemetry.Run(ctx); err != nil {
		return fmt.Errorf("telemetry.kernel: %w", err)
	}
	tick := time.NewTicker(push.MinInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.offer()
		}
	}
}
