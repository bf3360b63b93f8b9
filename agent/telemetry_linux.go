package agent

import (
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
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
