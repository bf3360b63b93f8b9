// Package agent is the daemon beside the inference engines of a host. Each engine is a node. The
// agent starts the engine or attaches to it, serves an authenticated front for routers, and
// announces the node's state in etcd. The agent reads the host's figures once for all nodes.
package agent

import (
	"log/slog"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
)

// Config is the configuration of an agent. Every field has a default, except an engine's model or
// URL, and the keys that each [[engine]] must set itself.
type Config struct {
	Agent     NodeConfig      `toml:"agent" help:"The node and its front."`
	GPU       gpu.Config      `toml:"gpu" help:"How the agent reads the host's NVIDIA GPUs. This needs the build with NVML (make build-gpu)."`
	Power     power.Config    `toml:"power" help:"Sources of the host's power, best first: Redfish, IPMI, the sum of GPUs and CPUs. See docs/power.md."`
	Engine    engine.Config   `toml:"engine" help:"The inference engine, which the agent attaches to (url) or starts and supervises. This is the short form for one engine. A host with several engines has a table [[engine]] for each."`
	Engines   []EngineConfig  `toml:"engine" help:"the engines of a host with several engines, one table each; each engine is a node of its own. The settings of a single engine ([engine], [kv_events], gpu.devices, and of [agent] listen, advertise, role, device, gpu_index, tp, data_parallel_size, dtype, vram_bytes, max_concurrent, max_batched_tokens and labels) then stand in these tables only"`
	Events    EventsConfig    `toml:"kv_events" help:"KV events, in which the engine publishes its cached blocks (vLLM: --kv-events-config). Routers then know these blocks exactly."`
	Etcd      cluster.Access  `toml:"etcd" help:"etcd, where the agent announces the node. Without endpoints the agent is only a front."`
	TLS       TLSConfig       `toml:"tls" help:"Certificate of the front. With ca, clients must show a certificate from that CA with the role router or ctl."`
	AdminTLS  adminport.TLS   `toml:"admin_tls" help:"TLS of the admin port, and the certificates of its clients (docs/auth.md)."`
	Limits    LimitConfig     `toml:"limits" help:"Bounds on the memory and connections that clients take. With [[engine]] each front has its own."`
	Telemetry TelemetryConfig `toml:"telemetry" help:"Figures that the kernel has of the engines' processes, the host's CPUs and the connections of the agent's ports. The agent reads them without asking the engines."`
	Audit     audit.Config    `toml:"audit" help:"The audit log: one JSON line for each administrative act and each refused identity (docs/security.md)."`
	Log       LogConfig       `toml:"log" help:"The log, which goes to standard error."`

	Logger *slog.Logger `toml:"-"` // nil means slog.Default
}

// NodeConfig is the [agent] section.
type NodeConfig struct {
	Listen         string          `toml:"listen" default:"127.0.0.1:9081" flag:"listen" help:"address of the front (host:port, or unix:///path)"`
	Admin          string          `toml:"admin" default:"127.0.0.1:9092" flag:"admin" help:"address of the admin port: /healthz, /readyz, /metrics, /debug/pprof"`
	KVAddress      string          `toml:"kv_address" flag:"kv-address" help:"address of the cgn-kvcached on this host, as the daemon announces it (its QUIC address, or else its TLS address, or else its gRPC address); the daemon's blocks then count in routing to this node"`
	Advertise      string          `toml:"advertise" flag:"advertise" help:"URL under which routers reach the front; empty: made of listen, with the host's name in place of a wildcard"`
	Push           string          `toml:"push" default:"" flag:"push" help:"address of the gRPC port where the agent tells routers about load as it changes (host:port, or unix:///path), with the certificates and the clients of listen; empty: a free port of listen's host, or a socket beside listen's socket (with [[engine]], listen of the first engine counts); off: no port. Routers learn the address from etcd, so without etcd there is no port"`
	InsecureListen bool            `toml:"insecure_listen" default:"false" flag:"insecure-listen" help:"allow listen beyond loopback without client certificates"`
	InsecureAdmin  bool            `toml:"insecure_admin" default:"false" flag:"insecure-admin" help:"allow admin beyond loopback without client certificates (admin_tls.client_ca); /debug shows internals"`
	ForwardAuth    bool            `toml:"forward_auth" default:"false" flag:"forward-auth" help:"pass the Authorization header of the router's requests (the router's own forward_auth) to the engine, and no header if the router sends none; the agent then uses engine.api_key_file only for its own requests of the engine's health and metrics; needs client certificates (tls.ca), or a listen that only this host reaches"`
	NodeID         string          `toml:"node_id" flag:"node-id" help:"name of the node in the fleet, letters, digits and . _ : -; empty: host name and port. With [[engine]] every node's name begins with it; empty: the host name"`
	StateDir       string          `toml:"state_dir" flag:"state-dir" help:"directory with the agent's identity, so that a restarted agent takes its node back at once; empty: a restarted agent waits until its old lease in etcd ends"`
	Heartbeat      config.Duration `toml:"heartbeat" default:"5s" help:"time between two writes of the node's state to etcd, at most 5m; the node's lease in etcd lasts three heartbeats, and routers trust the node's load as long, at least 15s"`
	DrainDelay     config.Duration `toml:"drain_delay" default:"2s" help:"time at a stop in which the agent already says that it is not ready and the front still accepts requests, so that routers notice"`
	DrainTimeout   config.Duration `toml:"drain_timeout" default:"60s" flag:"drain-timeout" help:"time that running requests have to finish at a stop, after drain_delay; requests that are left are then cut; 0: they are cut at once"`

	// In the short form, the following fields are settings of the only engine, as Listen and
	// Advertise are.
	Role          string      `toml:"role" default:"both" flag:"role" oneof:"prefill|decode|both" help:"which part of a request the node computes: prefill, the prompts of requests that other nodes answer; decode, answers; both. Roles prefill and decode need a connector (docs/engines.md)"`
	Device        string      `toml:"device" default:"" oneof:"|gpu|cpu" help:"kind of processor that the engine computes on; empty: unknown"`
	GPUIndex      int         `toml:"gpu_index" default:"0" help:"index of the engine's first GPU; if gpu.devices is empty, tp GPUs from this one on give the node's SM utilisation"`
	TP            int         `toml:"tp" default:"0" help:"tensor-parallel size, which the agent announces and gives to an engine that it starts; 0: unknown"`
	DataParallel  int         `toml:"data_parallel_size" default:"0" help:"data-parallel ranks of the engine, 64 at most, which the agent announces and gives to a vllm or sglang that it starts; routers then choose a rank for each request (docs/engines.md). 0: as many as the engine's metrics name; 1: the engine chooses its rank itself"`
	DType         string      `toml:"dtype" default:"" help:"data type such as bfloat16, which the agent announces and gives to a vllm or sglang that it starts; empty: unknown"`
	VRAM          config.Size `toml:"vram_bytes" default:"0" help:"memory of the node's GPUs together; 0: as NVML reports it, if the agent reads NVML"`
	MaxConcurrent int         `toml:"max_concurrent" default:"0" flag:"max-concurrent" help:"most requests that routers send to the node at once; an engine that the agent starts gets the same limit; 0: no limit. A low number refuses requests of a burst (docs/policy.md, Slots and limits). The agent also announces the engine's own limit, at which routers refuse nothing"`
	MaxBatched    int         `toml:"max_batched_tokens" default:"0" help:"tokens that the engine computes in one step, of all its requests together (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size); active_prefill_tokens_threshold_frac is a share of this number and has no effect without it (docs/filters.md); 0: unknown"`
	Labels        []string    `toml:"labels" help:"labels of the node, such as gpu=h100 or zone=a, which requests can require or prefer (docs/filters.md)"`
	Experts       []string    `toml:"experts" help:"experts of a mixture-of-experts model that the node hosts: numbers, ranges such as 0-127, and names, at most 64; requests ask for them with nvext.router.moe_query (docs/nvext.md); empty: none are stated"`
}

// TelemetryConfig is the [telemetry] section.
type TelemetryConfig struct {
	Kernel   string          `toml:"kernel" default:"auto" flag:"telemetry" oneof:"auto|bpf|proc|off" help:"source of the kernel's figures. bpf: programs in the kernel, which need CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and /sys/fs/bpf; proc: /proc and sock_diag, with fewer figures and less often; auto: bpf if possible, else proc with the reason in the log; off: no figures"`
	Interval config.Duration `toml:"interval" default:"50ms" help:"time between two looks at the kernel's figures while the figures change, at least 10ms; while they do not change, the time is 1.4 times as long. The agent looks less often if looks would take more than 0.2 % of a CPU, but at least every 5s"`
	Pins     string          `toml:"bpf_root" default:"/sys/fs/bpf/cognitora" help:"folder in a BPF file system that keeps programs and counts after the agent ends; the agents of a host share one"`
	Cgroup   string          `toml:"bpf_cgroup" default:"" help:"folder of the cgroup (version 2) whose connections are counted, with the cgroups below it; empty: all connections of the host"`
	Events   string          `toml:"events" default:"" flag:"kernel-events" help:"path of a Unix socket where the agent tells routers of this host (router.kernel_events) at once of retransmission timeouts, resets and failed connections to their nodes, and lets them read the counts; root, the agent's user and the members of events_group may connect; only one agent of a host can have the socket; empty: no socket"`
	Group    int             `toml:"events_group" default:"-1" help:"id of the group whose members may connect to events; -1: the agent's group"`
}

// TLSConfig is the [tls] section.
type TLSConfig struct {
	CA   string `toml:"ca" empty:"refused" help:"PEM file of the CA that clients' certificates must chain to; left out: clients show no certificate"`
	Cert string `toml:"cert" help:"certificate of the front; empty: plain HTTP"`
	Key  string `toml:"key" help:"key of the certificate"`
}

// LimitConfig is the [limits] section.
type LimitConfig struct {
	MaxBody        config.Size     `toml:"max_body" default:"64MiB" help:"largest request body; a larger one gets 413"`
	MaxBodyTotal   config.Size     `toml:"max_body_total" default:"1GiB" help:"most bytes of all request bodies of an engine above 64 KiB together; each body counts in full from its request head on. Beyond this limit a body too slow for read_timeout is cut (408), or the new request gets 503 with Retry-After. On Linux a body takes memory only as it arrives, and at most 32 MiB stay allocated for later bodies"`
	MaxHeader      config.Size     `toml:"max_header" default:"32KiB" help:"largest request head; a larger one gets 431"`
	MaxConnections int             `toml:"max_connections" default:"16384" help:"most open connections; further connections are closed at once"`
	MaxRequests    int             `toml:"max_requests" default:"8192" help:"most requests in flight; further requests get 503 with Retry-After"`
	ReadTimeout    config.Duration `toml:"read_timeout" default:"60s" help:"time a client has to send a request"`
	KeepAlive      config.Duration `toml:"keep_alive" default:"120s" help:"how long an idle connection is kept"`
	SlowReader     config.Duration `toml:"slow_reader" default:"30s" help:"a client that reads nothing for this long is cut"`
	Idle           config.Duration `toml:"idle" default:"600s" help:"longest gap between two reads of the engine's answer"`
	Total          config.Duration `toml:"total" default:"3600s" help:"longest duration of a whole request"`
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
