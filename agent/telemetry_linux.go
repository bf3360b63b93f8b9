package agent

import (
	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/rights"
)

// open is where numbers come from; nil: nowhere.
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

// examine looks at the rights and folders that programs in the kernel need, where nothing takes
// their place.
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

// openEvents opens the events of the programs, which are loaded.
func (c *TelemetryConfig) openEvents() (peerevents.Source, error) { return bpf.OpenEvents(c.Pins) }

// layout is what routers know the counts of peers by.
func layout() (uint64, error) { return bpf.PeersLayout() }
