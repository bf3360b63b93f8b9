package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
)

// EngineConfig is one [[engine]] table: an engine and the settings of its node.
type EngineConfig struct {
	ID        string   `toml:"id" help:"end of the node's name, which begins with agent.node_id (or the host's name) and -; letters, digits and . _ : -; empty: the port of listen, or the file name of listen's socket"`
	Listen    string   `toml:"listen" help:"address of the node's front (host:port, or unix:///path); each engine has a front of its own"`
	Advertise string   `toml:"advertise" help:"URL under which routers reach the front; empty: made of listen, with the host's name in place of a wildcard"`
	Labels    []string `toml:"labels" help:"labels of the node, such as gpu=h100 or zone=a, which requests can require or prefer (docs/filters.md)"`
	Experts   []string `toml:"experts" help:"experts of a mixture-of-experts model that the node hosts: numbers, ranges such as 0-127, and names, at most 64; requests ask for them with nvext.router.moe_query (docs/nvext.md); empty: none are stated"`
	GPUs      []string `toml:"gpus" help:"the engine's GPUs: index (0), index:GPU instance (0:1), GPU-... or MIG-... UUID. Their SM utilisation, memory and power count as the node's, and an engine that the agent starts sees only these; empty: the agent knows no GPU of the engine"`

	Role          string      `toml:"role" default:"both" oneof:"prefill|decode|both" help:"which part of a request the node computes: prefill, the prompts of requests that other nodes answer; decode, answers; both. Roles prefill and decode need a connector (docs/engines.md)"`
	Device        string      `toml:"device" default:"" oneof:"|gpu|cpu" help:"kind of processor that the engine computes on; empty: gpu if gpus names a GPU, else unknown"`
	TP            int         `toml:"tp" default:"0" help:"tensor-parallel size, which the agent announces and gives to an engine that it starts; 0: unknown"`
	DataParallel  int         `toml:"data_parallel_size" default:"0" help:"data-parallel ranks of the engine, 64 at most, which the agent announces and gives to a vllm or sglang that it starts; routers then choose a rank for each request (docs/engines.md). 0: as many as the engine's metrics name; 1: the engine chooses its rank itself"`
	DType         string      `toml:"dtype" default:"" help:"data type such as bfloat16, which the agent announces and gives to a vllm or sglang that it starts; empty: unknown"`
	VRAM          config.Size `toml:"vram_bytes" default:"0" help:"memory of the node's GPUs together; 0: as NVML reports it, if the agent reads NVML"`
	MaxConcurrent int         `toml:"max_concurrent" default:"0" help:"most requests that routers send to the node at once; an engine that the agent starts gets the same limit; 0: no limit. A low number refuses requests of a burst (docs/policy.md, Slots and limits). The agent also announces the engine's own limit, at which routers refuse nothing"`

	MaxBatched int `toml:"max_batched_tokens" default:"0" help:"tokens that the engine computes in one step, of all its requests together (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size); active_prefill_tokens_threshold_frac is a share of this number and has no effect without it (docs/filters.md); 0: unknown"`

	Engine engine.Config `toml:",inline"`
	Events EventsConfig  `toml:"kv_events" help:"KV events, in which the engine publishes its cached blocks."`
}

// maxEngines is the largest number of engines of an agent. The BPF programs count 64 ports, and
// each engine needs two.
const maxEngines = 32

// unit is one engine, from either form of the configuration.
type unit struct {
	EngineConfig
	config  *Config
	element string // "engine[1]"; empty in the short form
}

// units returns the engines, in the order of the file.
func (c *Config) units() []*unit {
	if len(c.Engines) == 0 {
		a := &c.Agent
		return []*unit{{config: c, EngineConfig: EngineConfig{
			Listen: a.Listen, Advertise: a.Advertise, GPUs: c.GPU.Devices, Role: a.Role, Device: a.Device, TP: a.TP,
			DataParallel: a.DataParallel, DType: a.DType, Labels: a.Labels, Experts: a.Experts,
			MaxBatched: a.MaxBatched, VRAM: a.VRAM, MaxConcurrent: a.MaxConcurrent, Engine: c.Engine, Events: c.Events,
		}}}
	}
	units := make([]*unit, len(c.Engines))
	for i := range c.Engines {
		units[i] = &unit{config: c, EngineConfig: c.Engines[i], element: fmt.Sprintf("engine[%d]", i)}
	}
	return units
}

// ofAgent lists the keys of [[engine]] that stand in [agent] in the short form.
var ofAgent = []string{"listen", "advertise", "role", "device", "tp", "data_parallel_size", "dtype", "vram_bytes",
	"max_concurrent", "max_batched_tokens", "labels", "experts"}

// name returns where a key of [[engine]] stands in the form that the user has chosen.
func (u *unit) name(key string) string {
	switch {
	case u.element != "":
		return u.element + "." + key
	case key == "id":
		return "agent.node_id"
	case key == "gpus":
		return "gpu.devices"
	case slices.Contains(ofAgent, key):
		return "agent." + key
	case strings.HasPrefix(key, "kv_events."):
		return key
	}
	return "engine." + key
}

// mention returns a key for use in a message. In the short form the key's flag follows.
func (u *unit) mention(key, flag string) string {
	if u.element != "" {
		return u.name(key)
	}
	return u.name(key) + " (" + flag + ")"
}

// flag returns the flag of a key in the short form. The flag is empty in a list, where flags do not
// apply.
func (u *unit) flag(flag string) string {
	if u.element != "" {
		return ""
	}
	return flag
}

// named rewrites an error of package engine so that it names the settings of the user's form.
func (u *unit) named(err error) error {
	if u.element == "" {
		return err
	}
	return config.In(err, u.element)
}

// visible returns the GPUs that a started engine may see; nil: the GPUs of its environment.
func (u *unit) visible() []string {
	if u.element == "" {
		return nil
	}
	return u.GPUs
}

// devices appends to dst the engine's devices among all. devices appends none if one of them is not
// read.
func (u *unit) devices(dst, all []gpu.Device) []gpu.Device {
	if u.element == "" {
		return gpu.Select(dst, all, u.GPUs, u.config.Agent.GPUIndex, u.TP*max(u.DataParallel, 1))
	}
	if len(u.GPUs) == 0 {
		return dst
	}
	return gpu.Select(dst, all, u.GPUs, 0, 0)
}

// validateForms refuses settings of the short form's engine beside [[engine]].
func (c *Config) validateForms(p *problems) {
	if len(c.Engines) == 0 {
		return
	}
	if len(c.Engines) > maxEngines {
		p.add("engine", "%d tables; one agent has %d engines at most: give the others an agent of their own",
			len(c.Engines), maxEngines)
	}
	var usual Config
	if err := config.Defaults(&usual); err != nil {
		panic(err) // only a mistake in the struct's own tags leads here
	}
	said, err := config.Changed(&usual, c)
	if err != nil {
		panic(err)
	}
	for _, field := range said {
		section, key, _ := strings.Cut(field, ".")
		switch {
		case field == "agent.gpu_index", field == "gpu.devices":
			key = "gpus"
		case section == "kv_events":
			key = field
		case section == "agent" && slices.Contains(ofAgent, key), section == "engine" && key != "":
		default:
			continue
		}
		p.add(field, "is set, and so is [[engine]]: it is of the short form, for one engine; set engine[0].%s and so "+
			"on in its place, or remove [[engine]]", key)
	}
}

// maxConcurrent is the largest allowed number of concurrent requests of an engine.
const maxConcurrent = 1 << 20

// validate checks the settings of a unit that package engine does not know. places are the agent's
// listening addresses.
func (u *unit) validate(p *problems, places []place) {
	c := u.config
	switch {
	case u.element != "" && u.Listen == "":
		p.add(u.name("listen"), "empty; give each engine an address of its own for routers, such as 127.0.0.1:9081")
	default:
		p.open(place{u.name("listen"), u.Listen}, c.authenticates() || c.Agent.InsecureListen, exposedFix)
	}
	if c.Agent.ForwardAuth && !c.authenticates() && !listen.Loopback(u.Listen) {
		p.add("agent.forward_auth", "anybody could offer the engine keys through %q, and read those of others on the "+
			"way: set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or listen on loopback or a "+
			"unix socket; insecure_listen does not lift this", u.Listen)
	}
	if u.Advertise != "" {
		if _, err := address.Parse(u.Advertise); err != nil {
			p.add(u.name("advertise"), "%v", err)
		}
	}
	if u.ID != "" {
		if err := cluster.CheckNodeID(u.ID); err != nil {
			p.add(u.name("id"), "%v", err)
		}
	}
	if u.Engine.NeedsStateDir() && c.Agent.StateDir == "" {
		p.add(u.name("offload.lmcache_config"), "empty; name LMCache's configuration file, or give agent.state_dir, "+
			"where the agent writes one")
	}
	if u.TP < 0 {
		p.add(u.name("tp"), "%d: must not be negative; 0 is unknown", u.TP)
	}
	if err := cluster.CheckDataParallel(u.DataParallel); err != nil {
		p.add(u.name("data_parallel_size"), "%v", err)
	} else if u.DataParallel > 1 && u.Engine.Kind == engine.LlamaCPP {
		p.add(u.name("data_parallel_size"), "%d: a llama_cpp has one rank; leave it out", u.DataParallel)
	}
	if u.MaxConcurrent < 0 || u.MaxConcurrent > maxConcurrent {
		p.add(u.name("max_concurrent"), "%d is not in 0..%d; 0 states no limit", u.MaxConcurrent, maxConcurrent)
	}
	if err := cluster.CheckBatch(u.MaxBatched); err != nil {
		p.add(u.name("max_batched_tokens"), "%v", err)
	}
	if err := cluster.CheckLabels(u.Labels); err != nil {
		p.add(u.name("labels"), "%v", err)
	}
	if err := cluster.Experts(u.Experts).Check(); err != nil {
		p.add(u.name("experts"), "%v", err)
	}
	u.Engine.ValidateRole(u.Role, func(key, format string, args ...any) { p.add(u.name(key), format, args...) })
	u.validateGPUs(p)
	u.validateEvents(p)
	u.validateAddress(p, places)
}

func (u *unit) validateGPUs(p *problems) {
	if u.element == "" {
		return // [gpu] validates itself
	}
	for _, err := range gpu.CheckNames(u.GPUs) {
		p.add(u.name("gpus"), "%v", err)
	}
	for _, name := range u.GPUs {
		if u.Engine.Spawns() && strings.Contains(name, ":") {
			p.add(u.name("gpus"), "%q: CUDA knows GPU instances by their UUID only, and the agent starts this "+
				"engine; give its MIG-... of `nvidia-smi -L`", name)
		}
	}
}

// engineAt returns the engine's address, and the key that sets it; "" while the address is unknown.
func (u *unit) engineAt() (key, at string) {
	if u.Engine.Spawns() {
		if u.Engine.Port == 0 {
			return "port", ""
		}
		return "port", u.Engine.ListenAt(u.Engine.Port)
	}
	a, err := address.Parse(u.Engine.URL)
	switch {
	case err != nil:
		return "url", ""
	case a.Network == "unix":
		return "url", "unix://" + a.Addr
	}
	return "url", a.Addr
}

// validateAddress refuses an engine address on which the agent itself listens.
func (u *unit) validateAddress(p *problems, places []place) {
	key, at := u.engineAt()
	for _, l := range places {
		if listen.Overlap(at, l.address) {
			p.add(u.name(key), "%s is where the agent itself listens (%s); give one of them another port", at, l.field)
		}
	}
}
