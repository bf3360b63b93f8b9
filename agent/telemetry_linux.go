package agent

import (
	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/rights"
)

// open returns the function that opens the source of figures; nil: there is no source.
func (c *TelemetryConfig) open() func() (telemetry.Source, error) {
	o := bpf.Options{Root: c.Pins, Cgroup: c.Cgroup}
	switch c.Kernel {
	case "auto":
		return telemetry.Open(o)
	case "bpf":
		return telemetry.OpenBPF(o)
	case "proc":
		return telemetry.OpenProc()
	}
	return nil
}

// examine checks the rights and folders that the BPF programs need, if the configuration allows no
// replacement for them.
func (c *TelemetryConfig) examine(p *problems) {
	if c.Kernel != "bpf" {
		return
	}
	if err := bpf.Permitted(); err != nil {
		p.add("telemetry.kernel", "%v, or set it to \"auto\", which does without", bpf.WithHint(err))
	}
	if err := bpf.Examine(c.Pins); err != nil {
		p.add("telemetry.bpf_root", "%v; name a folder below /sys/fs/bpf, or set telemetry.kernel = \"auto\"", err)
	} else if err := rights.Makeable(c.Pins); err != nil {
		p.add("telemetry.bpf_root", "%v; have root make it and give it to this user, as "+
			"deploy/systemd/cgn-agent.service does, or set telemetry.kernel = \"auto\"", err)
	}
	if c.Cgroup == "" {
		return
	}
	if err := rights.Listable(c.Cgroup); err != nil {
		p.add("telemetry.bpf_cgroup", "%v; name a cgroup's folder, or leave it out for all of the host", err)
	}
}

// openEvents opens the events of programs that are already loaded.
func (c *TelemetryConfig) openEvents() (peerevents.Source, error) { return bpf.OpenEvents(c.Pins) }

// layout identifies the layout of the counts of peers for routers.
func layout() (uint64, error) { return bpf.PeersLayout() }
