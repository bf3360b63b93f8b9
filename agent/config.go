// Package agent is the daemon beside the inference engines of a host. Each engine is a node. The
// agent starts the engine or attaches to it, serves an authenticated front for routers, and
// announces the node's state in etcd. It reads the host's figures once for all nodes.
package agent

import (
	"log/slog"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
)

// Config is the configuration of an agent. Every field has a default, except an engine's model or
// URL, and the keys that each [[engine]] must set itself.
type Config struct {
	Agent     NodeConfig      `toml:"agent" help:"The node and its front."`
	GPU       gpu.Config      `toml:"gpu" help:"How the host's NVIDIA GPUs are read. Needs the build with NVML (make build-gpu)."`
	Power     power.Config    `toml:"power" help:"Who says what the host draws: Redfish before IPMI before the sum of GPUs and CPUs. See docs/power.md."`
	Engine    engine.Config   `toml:"engine" help:"The inference engine: attached to with url, or started and supervised. This is the short form, for one engine; a host with several has a table [[engine]] for each."`
	Engines   []EngineConfig  `toml:"engine" help:"the engines of a host with several, a table each; every one is a node of its own. What is said of one engine elsewhere ([engine], [kv_events], gpu.devices, and of [agent] listen, advertise, role, device, gpu_index, tp, dtype, vram_bytes and max_concurrent) then stands here only"`
	Events    EventsConfig    `toml:"kv_events" help:"What the engine publishes about its KV cache (vLLM: --kv-events-config), by which routers know exactly what it has."`
	Etcd      cluster.Access  `toml:"etcd" help:"Where the node is announced. Without endpoints the agent is only a front."`
	TLS       TLSConfig       `toml:"tls" help:"Certificate of the front. With a ca, clients must show a certificate of it whose role is router or ctl."`
	Limits    LimitConfig     `toml:"limits" help:"Bounds on what clients can make the agent hold. With [[engine]] each front has them for itself."`
	Telemetry TelemetryConfig `toml:"telemetry" help:"What the agent asks the kernel about the engines' processes, the host's CPUs and the connections of its ports; nothing is asked of the engines."`
	Log       LogConfig       `toml:"log" help:"What is logged, to standard error."`

	Logger *slog.Logger `toml:"-"` // nil means slog.Default
}

// NodeConfig is the [agent] section.
type NodeConfig struct {
	Listen         string          `toml:"listen" default:"127.0.0.1:9081" flag:"listen" help:"address of the front (host:port, or unix:///path)"`
	Admin          string          `toml:"admin" default:"127.0.0.1:9092" flag:"admin" help:"address of the admin port: /healthz, /readyz, /metrics, /debug/pprof"`
	KVAddress      string          `toml:"kv_address" flag:"kv-address" help:"address of the cgn-kvcached on this host, as it announces it (its QUIC address, else TLS, else gRPC); what that holds then counts in routing to this node"`
	Advertise      string          `toml:"advertise" flag:"advertise" help:"URL under which routers reach the front; empty: made of listen, with the host's name in place of a wildcard"`
	Push           string          `toml:"push" default:"" flag:"push" help:"address of the port where routers are told of load as it changes, over gRPC, with the certificates of listen and open to the same clients (host:port, or unix:///path); empty: a free port of listen's host, or beside its socket (with [[engine]], of the first one's); off: none. Without etcd there is none: routers learn of it there"`
	InsecureListen bool            `toml:"insecure_listen" default:"false" flag:"insecure-listen" help:"allow listen beyond loopback without client certificates"`
	InsecureAdmin  bool            `toml:"insecure_admin" default:"false" flag:"insecure-admin" help:"allow admin beyond loopback; nobody is authenticated there, and /debug tells much"`
	ForwardAuth    bool            `toml:"forward_auth" default:"false" flag:"forward-auth" help:"pass the Authorization that the router sends (its own forward_auth) to the engine, and none where it sends none; engine.api_key_file then opens the engine to the agent's own looks only; needs client certificates (tls.ca), or a listen that only this host reaches"`
	NodeID         string          `toml:"node_id" flag:"node-id" help:"name of the node in the fleet, letters, digits and . _ : -; empty: host name and port. With [[engine]] what the names of its nodes begin with; empty: the host name"`
	StateDir       string          `toml:"state_dir" flag:"state-dir" help:"directory where the agent remembers itself, so that a restart takes its node back at once; empty: it waits for the old lease to end"`
	Heartbeat      config.Duration `toml:"heartbeat" default:"5s" help:"time between two writes of the node's state, 5m at most; its lease lasts three of them, and routers trust its load for as long, for 15s at least"`
	DrainDelay     config.Duration `toml:"drain_delay" default:"2s" help:"time the front goes on accepting after it said it is not ready, so that routers have heard it"`
	DrainTimeout   config.Duration `toml:"drain_timeout" default:"60s" flag:"drain-timeout" help:"time that running requests have to finish when the agent is stopped; then they are cut; 0: at once"`

	// Settings of the one engine in the short form, as Listen and Advertise are.
	Role          string      `toml:"role" default:"both" flag:"role" oneof:"prefill|decode|both" help:"which part of a request the node computes; routers send nothing to prefill nodes"`
	Device        string      `toml:"device" default:"" oneof:"|gpu|cpu" help:"what the engine computes on; empty: unknown"`
	GPUIndex      int         `toml:"gpu_index" default:"0" help:"first GPU of the engine, announced; with tp, the GPUs whose SM utilisation is the node's, where gpu.devices names none"`
	TP            int         `toml:"tp" default:"0" help:"tensor-parallel size, announced and given to a started engine; 0: unknown"`
	DType         string      `toml:"dtype" default:"" help:"data type such as bfloat16, announced and given to a started vllm or sglang; empty: unknown"`
	VRAM          config.Size `toml:"vram_bytes" default:"0" help:"memory of the node's GPUs together; 0: what NVML says, where it is read"`
	MaxConcurrent int         `toml:"max_concurrent" default:"0" flag:"max-concurrent" help:"requests that the node is given at once, at most; a started engine is told the same; 0: not stated. Load is measured by it, so a large number makes load count little (16 routed better than 64, 256 worst). The number that the engine tells of itself is announced beside it, and refuses nothing"`
}

// TelemetryConfig is the [telemetry] section.
type TelemetryConfig struct {
	Kernel   string          `toml:"kernel" default:"auto" flag:"telemetry" oneof:"auto|bpf|proc|off" help:"where numbers come from. bpf: programs in the kernel, which needs CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and /sys/fs/bpf; proc: /proc and sock_diag, which tell less and less often; auto: bpf where that can be, else proc, and the log says why; off: nowhere"`
	Interval config.Duration `toml:"interval" default:"50ms" help:"time between two looks while something moves, and 1.4 times as long while nothing does; 10ms at least. A look that takes more than 0.2 % of a CPU at that pace is made less often, every 5s at least"`
	Pins     string          `toml:"bpf_root" default:"/sys/fs/bpf/cognitora" help:"folder in a BPF file system where programs and their counts are kept when the agent ends; the agents of a host share one"`
	Cgroup   string          `toml:"bpf_cgroup" default:"" help:"folder of the cgroup (version 2) whose connections are counted, and those below; empty: all of the host"`
	Events   string          `toml:"events" default:"" flag:"kernel-events" help:"path of a Unix socket at which routers of this host (router.kernel_events) are told at once of retransmission timeouts, resets and failed connections to their nodes, and can read what is counted of them; for root, the agent's user and events_group; one agent of a host; empty: nobody is told"`
	Group    int             `toml:"events_group" default:"-1" help:"id of the group whose members may connect to events; -1: that of the agent"`
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
	MaxBodyTotal   config.Size     `toml:"max_body_total" default:"1GiB" help:"request bodies above 64 KiB held at once, all together, each from its announcement on; above it those are cut (408) that come too slowly for read_timeout, and without any 503 with Retry-After. For each engine. On Linux they take memory as they come, not as announced, and 32 MiB of it at most stay for later ones"`
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
		MaxBody: int(l.MaxBody), MaxBodyTotal: int(l.MaxBodyTotal), MaxHeader: int(l.MaxHeader),
		MaxConnections: l.MaxConnections, MaxRequests: l.MaxRequests,
		ReadTimeout: l.ReadTimeout.Std(), KeepAlive: l.KeepAlive.Std(), SlowReader: l.SlowReader.Std(),
		Idle: l.Idle.Std(), Total: l.Total.Std(),
	}
}

// LogConfig is the [log] section.
type LogConfig struct {
	Level  string `toml:"level" default:"info" flag:"log-level" oneof:"debug|info|warn|error" help:"least severity that is logged"`
	Format string `toml:"format" default:"text" flag:"log-format" oneof:"text|json" help:"how log lines are written"`
}
