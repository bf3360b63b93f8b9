package agent

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
)

// problems collects the errors of a configuration.
type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
}

// Validate returns an error for each invalid field, with the fix. Package engine validates the keys
// of [engine] and [[engine]] that it reads.
func (c *Config) Validate() error {
	var p problems
	units := c.units()
	places := c.places(units)
	c.validateForms(&p)
	c.validateListeners(&p, places)
	c.validateAgent(&p)
	for _, u := range units {
		u.validate(&p, places)
	}
	validateApart(&p, units)
	c.validateTLS(&p)
	c.Limits.validate(&p)
	c.validateTelemetry(&p)
	return errors.Join(p...)
}

func (l *LimitConfig) validate(p *problems) {
	for _, f := range []struct {
		field string
		value int64
	}{
		{"limits.max_connections", int64(l.MaxConnections)}, {"limits.max_requests", int64(l.MaxRequests)},
		{"limits.read_timeout", int64(l.ReadTimeout)}, {"limits.keep_alive", int64(l.KeepAlive)},
		{"limits.slow_reader", int64(l.SlowReader)}, {"limits.idle", int64(l.Idle)}, {"limits.total", int64(l.Total)},
	} {
		if f.value < 1 {
			p.add(f.field, "must be above 0")
		}
	}
	if l.MaxBodyTotal < l.MaxBody {
		p.add("limits.max_body_total", "%s is less than limits.max_body, %s; give as much at least", l.MaxBodyTotal,
			l.MaxBody)
	}
	if l.MaxBody < 1024 || l.MaxHeader < 4096 {
		p.add("limits.max_body", "max_body must be 1KiB or more, max_header 4KiB or more")
	}
}

// authenticates tells whether the front asks its clients for certificates.
func (c *Config) authenticates() bool { return c.TLS.CA != "" && c.TLS.Cert != "" }

// place is an address that the agent listens on, and its field.
type place struct{ field, address string }

// places returns all addresses that the agent listens on.
func (c *Config) places(units []*unit) []place {
	var all []place
	for _, u := range units {
		all = append(all, place{u.name("listen"), u.Listen})
	}
	all = append(all, place{"agent.admin", c.Agent.Admin})
	if c.Agent.Push != "" && c.Agent.Push != pushOff {
		all = append(all, place{"agent.push", c.Agent.Push})
	}
	for _, u := range units {
		if u.Events.Listen != "" {
			all = append(all, place{u.name("kv_events.listen"), u.Events.Listen})
		}
	}
	if at := c.Telemetry.Events; filepath.IsAbs(at) {
		all = append(all, place{"telemetry.events", "unix://" + at})
	}
	return all
}

// open checks that the agent can listen on an address. open refuses an address that other hosts
// reach, unless allowed is set.
func (p *problems) open(at place, allowed bool, fix string) {
	if err := listen.Check(at.address); err != nil {
		p.add(at.field, "%v", err)
	} else if !allowed && !listen.Loopback(at.address) {
		p.add(at.field, "%q is reachable from other hosts without authentication; %s if the network is trusted",
			at.address, fix)
	}
}

// exposedFix is the fix for a front that other hosts reach.
const exposedFix = "set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or insecure_listen = true " +
	"(--insecure-listen)"

func (c *Config) validateListeners(p *problems, places []place) {
	p.open(place{"agent.admin", c.Agent.Admin}, c.AdminTLS.Certified() || c.Agent.InsecureAdmin,
		"listen on loopback, or set admin_tls.client_ca, or insecure_admin = true (--insecure-admin)")
	if at := c.Agent.Push; at != "" && at != pushOff {
		if err := listen.Check(at); err != nil {
			p.add("agent.push", "%v, empty or off", err)
		} else {
			p.open(place{"agent.push", at}, c.authenticates() || c.Agent.InsecureListen, exposedFix)
		}
	}
	for i, one := range places {
		for _, other := range places[:i] {
			if listen.Overlap(one.address, other.address) {
				p.add(one.field, "%q cannot be listened on next to %s, %q; give it another port", one.address,
					other.field, other.address)
			}
		}
	}
}

func (c *Config) validateTelemetry(p *problems) {
	if c.Telemetry.Interval.Std() < telemetry.MinInterval {
		p.add("telemetry.interval", "%s is too short; use %s or more", c.Telemetry.Interval, telemetry.MinInterval)
	}
	if !filepath.IsAbs(c.Telemetry.Pins) {
		p.add("telemetry.bpf_root", "%q is no absolute path; the usual one is /sys/fs/bpf/cognitora", c.Telemetry.Pins)
	}
	switch t := &c.Telemetry; {
	case t.Events == "" && t.Group >= 0:
		p.add("telemetry.events_group", "is for telemetry.events, which is empty: set that, or leave this out")
	case t.Events == "":
	case !filepath.IsAbs(t.Events):
		p.add("telemetry.events", "%q is no absolute path", t.Events)
	case t.Kernel != "auto" && t.Kernel != "bpf":
		p.add("telemetry.events",
			"only programs in the kernel tell of events, and telemetry.kernel is %s: "+
				"make it auto or bpf, or leave this out", t.Kernel)
	}
}

func (c *Config) validateAgent(p *problems) {
	if c.Agent.NodeID != "" {
		if err := cluster.CheckNodeID(c.Agent.NodeID); err != nil {
			p.add("agent.node_id", "%v", err)
		}
	}
	if err := cluster.CheckPlace("kv_address", c.Agent.KVAddress); err != nil {
		p.add("agent.kv_address", "%v", err)
	}
	if c.Agent.Heartbeat.Std().Milliseconds() < 100 {
		p.add("agent.heartbeat", "%s is too short; use 100ms or more, 5s suits most fleets", c.Agent.Heartbeat)
	}
	if c.Agent.Heartbeat.Std() > cluster.MaxHeartbeat {
		p.add("agent.heartbeat", "%s is too long; use %s or less, 5s suits most fleets", c.Agent.Heartbeat,
			cluster.MaxHeartbeat)
	}
	if c.Agent.GPUIndex < 0 {
		p.add("agent.gpu_index", "%d: GPUs are counted from 0", c.Agent.GPUIndex)
	}
}

func (c *Config) validateTLS(p *problems) {
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		p.add("tls.cert", "goes together with tls.key; give both or neither")
	}
	if c.TLS.CA != "" && c.TLS.Cert == "" {
		p.add("tls.ca", "needs tls.cert and tls.key")
	}
}
