// Package agent is the daemon beside one inference engine: it starts or
// attaches to the engine, is its authenticated front for the routers, and tells
// the fleet through etcd how its node is.
package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
)

// Config is everything an agent can be told. Every field has a default, except
// the engine's model or URL.
type Config struct {
	Agent     NodeConfig      `toml:"agent" help:"The node and its front."`
	GPU       gpu.Config      `toml:"gpu" help:"How the host's NVIDIA GPUs are read. Needs the build with NVML (make build-gpu)."`
	Power     power.Config    `toml:"power" help:"Who says what the host draws: Redfish before IPMI before the sum of GPUs and CPUs. See docs/power.md."`
	Engine    engine.Config   `toml:"engine" help:"The inference engine: attached to with url, or started and supervised."`
	Events    EventsConfig    `toml:"kv_events" help:"What the engine publishes about its KV cache (vLLM: --kv-events-config), by which routers know exactly what it has."`
	Etcd      cluster.Access  `toml:"etcd" help:"Where the node is announced. Without endpoints the agent is only a front."`
	TLS       TLSConfig       `toml:"tls" help:"Certificate of the front. With a ca, clients must show a certificate of it whose role is router or ctl."`
	Limits    LimitConfig     `toml:"limits" help:"Bounds on what clients can make the agent hold."`
	Telemetry TelemetryConfig `toml:"telemetry" help:"What the agent asks the kernel about the engine's processes, the host's CPUs and the connections of its ports; nothing is asked of the engine."`
	Log       LogConfig       `toml:"log" help:"What is logged, to standard error."`

	Logger *slog.Logger `toml:"-"` // nil means slog.Default
}

// NodeConfig is the [agent] section.
type NodeConfig struct {
	Listen         string          `toml:"listen" default:"127.0.0.1:9081" flag:"listen" help:"address of the front (host:port, or unix:///path)"`
	Admin          string          `toml:"admin" default:"127.0.0.1:9092" flag:"admin" help:"address of the admin port: /healthz, /readyz, /metrics, /debug/pprof"`
	KVAddress      string          `toml:"kv_address" flag:"kv-address" help:"address of the cgn-kvcached on this host, as it announces it (its QUIC address, else TLS, else gRPC); what that holds then counts in routing to this node"`
	Advertise      string          `toml:"advertise" flag:"advertise" help:"URL under which routers reach the front; empty: made of listen, with the host's name in place of a wildcard"`
	Push           string          `toml:"push" default:"" flag:"push" help:"address of the port where routers are told of load as it changes, over gRPC, with the certificates of listen and open to the same clients (host:port, or unix:///path); empty: a free port of listen's host, or beside its socket; off: none. Without etcd there is none: routers learn of it there"`
	InsecureListen bool            `toml:"insecure_listen" default:"false" flag:"insecure-listen" help:"allow listen beyond loopback without client certificates"`
	InsecureAdmin  bool            `toml:"insecure_admin" default:"false" flag:"insecure-admin" help:"allow admin beyond loopback; nobody is authenticated there, and /debug tells much"`
	ForwardAuth    bool            `toml:"forward_auth" default:"false" flag:"forward-auth" help:"pass the Authorization that the router sends (its own forward_auth) to the engine, and none where it sends none; engine.api_key_file then opens the engine to the agent's own looks only; needs client certificates (tls.ca), or a listen that only this host reaches"`
	NodeID         string          `toml:"node_id" flag:"node-id" help:"name of the node in the fleet, letters, digits and . _ : -; empty: host name and port"`
	StateDir       string          `toml:"state_dir" flag:"state-dir" help:"directory where the agent remembers itself, so that a restart takes its node back at once; empty: it waits for the old lease to end"`
	Heartbeat      config.Duration `toml:"heartbeat" default:"5s" help:"time between two writes of the node's state; its lease lasts three of them"`
	DrainDelay     config.Duration `toml:"drain_delay" default:"2s" help:"time the front goes on accepting after it said it is not ready, so that routers have heard it"`
	DrainTimeout   config.Duration `toml:"drain_timeout" default:"60s" flag:"drain-timeout" help:"time that running requests have to finish when the agent is stopped; then they are cut; 0: at once"`

	Role          string      `toml:"role" default:"both" flag:"role" oneof:"prefill|decode|both" help:"which part of a request the node computes; routers send nothing to prefill nodes so far"`
	Device        string      `toml:"device" default:"" oneof:"|gpu|cpu" help:"what the engine computes on; empty: unknown"`
	GPUIndex      int         `toml:"gpu_index" default:"0" help:"first GPU of the engine, announced; with tp, the GPUs whose SM utilisation is the node's, where gpu.devices names none"`
	TP            int         `toml:"tp" default:"0" help:"tensor-parallel size, announced and given to a started engine; 0: unknown"`
	DType         string      `toml:"dtype" default:"" help:"data type such as bfloat16, announced and given to a started vllm or sglang; empty: unknown"`
	VRAM          config.Size `toml:"vram_bytes" default:"0" help:"memory of the node's GPUs together; 0: what NVML says, where it is read"`
	MaxConcurrent int         `toml:"max_concurrent" default:"0" flag:"max-concurrent" help:"requests the engine computes at once, announced and given to a started engine; 0: what the engine says, if it does"`
}

// TelemetryConfig is the [telemetry] section.
type TelemetryConfig struct {
	Kernel   string          `toml:"kernel" default:"auto" flag:"telemetry" oneof:"auto|bpf|proc|off" help:"where numbers come from. bpf: programs in the kernel, which needs CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and /sys/fs/bpf; proc: /proc and sock_diag, which tell less and less often; auto: bpf where that can be, else proc, and the log says why; off: nowhere"`
	Interval config.Duration `toml:"interval" default:"50ms" help:"time between two looks; 10ms at least. A look that takes more than 0.2 % of a CPU at that pace is made less often, every 5s at least"`
	Pins     string          `toml:"bpf_root" default:"/sys/fs/bpf/cognitora" help:"folder in a BPF file system where programs and their counts are kept when the agent ends; the agents of a host share one"`
	Cgroup   string          `toml:"bpf_cgroup" default:"" help:"folder of the cgroup (version 2) whose connections are counted, and those below; empty: all of the host"`
}

// TLSConfig is the [tls] section.
type TLSConfig struct {
	CA   string `toml:"ca" help:"PEM file that clients' certificates must chain to; empty: clients show none"`
	Cert string `toml:"cert" help:"certificate of the front; plain HTTP when empty"`
	Key  string `toml:"key" help:"key of the certificate"`
}

// LimitConfig is the [limits] section.
type LimitConfig struct {
	MaxBody        config.Size     `toml:"max_body" default:"64MiB" help:"largest request body; above it 413"`
	MaxBodyTotal   config.Size     `toml:"max_body_total" default:"1GiB" help:"request bodies above 64 KiB held at once, all together, each from its announcement on, and as max_body where its length is not told; above it 503 with Retry-After"`
	MaxHeader      config.Size     `toml:"max_header" default:"32KiB" help:"largest request head; above it 431"`
	MaxConnections int             `toml:"max_connections" default:"16384" help:"open connections; above it they are closed at once"`
	MaxRequests    int             `toml:"max_requests" default:"8192" help:"requests in flight; above it 503 with Retry-After"`
	ReadTimeout    config.Duration `toml:"read_timeout" default:"60s" help:"time a client has to send a request"`
	KeepAlive      config.Duration `toml:"keep_alive" default:"120s" help:"how long an idle connection is kept"`
	SlowReader     config.Duration `toml:"slow_reader" default:"30s" help:"a client that reads nothing for this long is cut"`
	Idle           config.Duration `toml:"idle" default:"600s" help:"longest gap between two reads of the engine's answer"`
	Total          config.Duration `toml:"total" default:"3600s" help:"longest whole request"`
}

func (l *LimitConfig) front() front.Limits {
	return front.Limits{
		MaxBody: int(l.MaxBody), MaxBodies: int(l.MaxBodyTotal), MaxHeader: int(l.MaxHeader), MaxConnections: l.MaxConnections, MaxRequests: l.MaxRequests,
		ReadTimeout: l.ReadTimeout.Std(), KeepAlive: l.KeepAlive.Std(), SlowReader: l.SlowReader.Std(),
		Idle: l.Idle.Std(), Total: l.Total.Std(),
	}
}

// LogConfig is the [log] section.
type LogConfig struct {
	Level  string `toml:"level" default:"info" flag:"log-level" oneof:"debug|info|warn|error" help:"least severity that is logged"`
	Format string `toml:"format" default:"text" flag:"log-format" oneof:"text|json" help:"how log lines are written"`
}

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// Validate names each field that cannot work, and the fix. The [engine] section
// validates itself.
func (c *Config) Validate() error {
	var p problems
	c.validateListeners(&p)
	c.validateNode(&p)
	c.validateTLS(&p)
	c.validateEvents(&p)
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
		p.add("limits.max_body_total", "%s is less than limits.max_body, %s; give as much at least", l.MaxBodyTotal, l.MaxBody)
	}
	if l.MaxBody < 1024 || l.MaxHeader < 4096 {
		p.add("limits.max_body", "max_body must be 1KiB or more, max_header 4KiB or more")
	}
}

// authenticates tells whether the front asks its clients for certificates.
func (c *Config) authenticates() bool { return c.TLS.CA != "" && c.TLS.Cert != "" }

func (c *Config) validateListeners(p *problems) {
	for _, l := range []struct {
		field, address, fix string
		allowed             bool
	}{
		{"agent.listen", c.Agent.Listen, "set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or insecure_listen = true (--insecure-listen)", c.authenticates() || c.Agent.InsecureListen},
		{"agent.admin", c.Agent.Admin, "listen on loopback, or set insecure_admin = true (--insecure-admin)", c.Agent.InsecureAdmin},
	} {
		if err := listen.Check(l.address); err != nil {
			p.add(l.field, "%v", err)
		} else if !l.allowed && !listen.Loopback(l.address) {
			p.add(l.field, "%q is reachable from other hosts without authentication; %s if the network is trusted", l.address, l.fix)
		}
	}
	c.validatePush(p)
	if listen.Overlap(c.Agent.Listen, c.Agent.Admin) {
		p.add("agent.admin", "%q cannot be listened on next to agent.listen, %q; give it another port", c.Agent.Admin, c.Agent.Listen)
	}
	c.validateEngineAddress(p)
	if c.Agent.ForwardAuth && !c.authenticates() && !listen.Loopback(c.Agent.Listen) {
		p.add("agent.forward_auth", "anybody could offer the engine keys through %q, and read those of others on the way: set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or listen on loopback or a unix socket; insecure_listen does not lift this", c.Agent.Listen)
	}
	if c.Agent.Advertise != "" {
		if _, err := address.Parse(c.Agent.Advertise); err != nil {
			p.add("agent.advertise", "%v", err)
		}
	}
}

func (c *Config) validatePush(p *problems) {
	at := c.Agent.Push
	if at == "" || at == pushOff {
		return
	}
	if err := listen.Check(at); err != nil {
		p.add("agent.push", "%v, empty or off", err)
	} else if !c.authenticates() && !c.Agent.InsecureListen && !listen.Loopback(at) {
		p.add("agent.push", "%q is reachable from other hosts without authentication; set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or insecure_listen = true (--insecure-listen) if the network is trusted", at)
	}
	for _, l := range []struct{ field, address string }{{"agent.listen", c.Agent.Listen}, {"agent.admin", c.Agent.Admin}} {
		if listen.Overlap(at, l.address) {
			p.add("agent.push", "%q cannot be listened on next to %s, %q; give it another port, or leave it out", at, l.field, l.address)
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
}

// validateEngineAddress refuses an engine where the agent itself listens.
func (c *Config) validateEngineAddress(p *problems) {
	field, at := "engine.url", ""
	if c.Engine.Spawns() {
		field, at = "engine.port", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Engine.Port))
	} else if a, err := address.Parse(c.Engine.URL); err == nil && a.Network == "unix" {
		at = "unix://" + a.Addr
	} else if err == nil {
		at = a.Addr
	}
	for _, l := range []struct{ field, address string }{{"agent.listen", c.Agent.Listen}, {"agent.admin", c.Agent.Admin}, {"agent.push", c.Agent.Push}} {
		if listen.Overlap(at, l.address) {
			p.add(field, "%s is where the agent itself listens (%s); give one of them another port", at, l.field)
		}
	}
}

func (c *Config) validateNode(p *problems) {
	if c.Agent.NodeID != "" {
		if err := cluster.CheckNodeID(c.Agent.NodeID); err != nil {
			p.add("agent.node_id", "%v", err)
		}
	}
	if c.Agent.Heartbeat.Std().Milliseconds() < 100 {
		p.add("agent.heartbeat", "%s is too short; use 100ms or more, 5s suits most fleets", c.Agent.Heartbeat)
	}
	if c.Engine.NeedsStateDir() && c.Agent.StateDir == "" {
		p.add("engine.offload.lmcache_config", "empty; name LMCache's configuration file, or give agent.state_dir, where the agent writes one")
	}
	if c.Agent.TP < 0 || c.Agent.GPUIndex < 0 || c.Agent.MaxConcurrent < 0 || c.Agent.MaxConcurrent > 1<<20 {
		p.add("agent.max_concurrent", "tp and gpu_index must not be negative, and max_concurrent must be in 0..%d", 1<<20)
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
