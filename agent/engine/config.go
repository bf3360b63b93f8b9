// Package engine looks after one inference engine of an agent. The package attaches to a running
// engine, or starts and supervises its own. The package keeps a current State of the engine by
// polling it at low cost.
package engine

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
)

// Kinds of engine.
const (
	VLLM         = "vllm"
	SGLang       = "sglang"
	LlamaCPP     = "llama_cpp"
	OpenAICompat = "openai_compat"
)

// Config is the [engine] section, and part of each [[engine]]. With URL the agent attaches to a
// running engine; without it the agent starts one and owns it.
type Config struct {
	Kind string `toml:"kind" default:"vllm" flag:"kind" oneof:"vllm|sglang|llama_cpp|openai_compat" help:"kind of engine"`
	URL  string `toml:"url" flag:"engine" help:"running engine to attach to: http://host:port, https://host:port or unix:///path; empty: the agent starts one"`
	CA   string `toml:"ca" help:"PEM file of the CAs that may sign an https engine's certificate; empty: the system's CAs"`

	PIDFile string `toml:"pid_file" help:"file with the process id of an attached engine, whose CPU time the agent counts; empty: the agent looks for the process that listens on the port of url, and to find it the agent must run as the same user or root"`

	Binary string   `toml:"binary" help:"program to start; empty: vllm, python3 (sglang) or llama-server from PATH; a script must exec the engine, because otherwise the engine outlives a killed agent"`
	Model  string   `toml:"model" flag:"model" help:"model that the started engine loads: a name, a directory or a .gguf file"`
	Host   string   `toml:"host" default:"127.0.0.1" help:"IP address on which the started engine listens. Beyond loopback, other hosts reach the engine without the agent's certificates, so a firewall must keep clients away. An SGLang of role prefill needs it: its bootstrap server listens there, and the engines that decode ask it"`
	Port   int      `toml:"port" default:"0" help:"port of the started engine; 0: a free one"`
	Args   []string `toml:"args" flag:"-" help:"further arguments of the started engine; {model}, {host} and {port} are replaced"`
	Env    []string `toml:"env" flag:"-" help:"NAME=value pairs added to the started engine's environment"`

	KVOffload string  `toml:"kv_offload" default:"none" flag:"kv-offload" oneof:"none|nixl|mooncake|lmcache|nixl+lmcache|kvbm|nixl+kvbm|kvcached|nixl+kvcached|kvcached-s3|nixl+kvcached-s3|hicache" help:"connector with which a started engine moves KV blocks out of the GPU: vllm knows all but hicache, sglang knows nixl, mooncake and hicache. nixl and mooncake hand blocks to other engines, the others keep them (docs/engines.md). kvcached also hands them over in role prefill and decode, and in role both if connector is kvcached. It needs the package of deploy/vllm in the engine's Python; without it the agent starts an engine that only keeps blocks with kvcached-s3"`
	Offload   Offload `toml:"offload" help:"Settings of the connector that kv_offload names."`

	Connector string `toml:"connector" help:"how the engine hands KV blocks to other engines, or takes them (docs/engines.md): nixl, mooncake or kvcached (vllm), sglang, trtllm or trtllm-generation-first (TensorRT-LLM, attached to as openai_compat). nixl and kvcached are tested with real engines; the others are experimental, held to documented bytes. Empty: as kv_offload or args say; for an attached engine of role prefill or decode nixl with vllm, and sglang with sglang"`
	Bootstrap string `toml:"bootstrap" help:"address under which engines that decode reach the bootstrap server of this one: host:port, or :port on the host of the node's own address; the agent gives the port to an engine that it starts with kv_offload. For the connectors sglang and mooncake of a node that prefills. The agent does not relay it. Empty: the port of the engine's args or env, or else :8998"`

	Models     []string `toml:"models" help:"names of the models that the node serves; empty: the names that the engine's /v1/models lists"`
	APIKeyFile string   `toml:"api_key_file" help:"file with the key that the engine requires; the agent sends the key as Authorization: Bearer"`

	ScrapeInterval config.Duration `toml:"scrape_interval" default:"1s" help:"time between two looks at the engine's health and metrics; 1s at least"`
	ScrapeTimeout  config.Duration `toml:"scrape_timeout" default:"2s" help:"time that the engine has to answer one look at its health or metrics"`

	StartTimeout     config.Duration `toml:"start_timeout" default:"30m" help:"a started engine that is not ready after this long is restarted"`
	UnhealthyTimeout config.Duration `toml:"unhealthy_timeout" default:"2m" help:"a started engine that stops being ready for this long is restarted"`
	StopGrace        config.Duration `toml:"stop_grace" default:"30s" help:"time between SIGTERM and SIGKILL when the started engine is stopped"`
	RestartDelay     config.Duration `toml:"restart_delay" default:"1s" help:"wait before the first restart; the wait doubles with each further restart"`
	RestartDelayMax  config.Duration `toml:"restart_delay_max" default:"1m" help:"longest wait before a restart"`
	StableAfter      config.Duration `toml:"stable_after" default:"1m" help:"a run of the engine that lasts this long sets the delay back to restart_delay"`
}

// Spawns tells whether the agent starts the engine itself.
func (c *Config) Spawns() bool { return c.URL == "" }

// ListenAt returns where a started engine listens if it has this port.
func (c *Config) ListenAt(port int) string {
	return net.JoinHostPort(c.listenHost(), strconv.Itoa(port))
}

// listenHost returns the address on which a started engine listens.
func (c *Config) listenHost() string { return cmp.Or(c.Host, loopback) }

// dialHost returns the address at which the agent reaches a started engine.
func (c *Config) dialHost() string {
	ip := net.ParseIP(c.listenHost())
	switch {
	case !ip.IsUnspecified():
		return c.listenHost()
	case ip.To4() == nil:
		return "::1"
	}
	return loopback
}

// wrong returns an error about a key, as config.Wrong does.
func wrong(key, format string, args ...any) error {
	return config.Wrong("engine", key, format, args...)
}

// Validate returns an error for each invalid field, with the fix.
func (c *Config) Validate() error {
	var errs []error
	missing := func(key, format string, args ...any) {
		errs = append(errs, config.Missing{Err: wrong(key, format, args...)})
	}
	bad := func(field, format string, args ...any) {
		errs = append(errs, wrong(field, format, args...))
	}
	if c.Spawns() {
		c.validateSpawn(bad, missing)
	} else {
		c.validateAttach(bad)
	}
	c.validateOffload(bad)
	c.validateConnector(bad)
	if c.ScrapeInterval.Std() < minScrapeInterval {
		bad("scrape_interval", "%s is too often for an engine; use %s or more", c.ScrapeInterval, minScrapeInterval)
	}
	if _, leftOut := cluster.FitModels(c.Models); leftOut > 0 {
		bad("models", "%d names cannot be announced: they are empty or above 512 bytes, or more than 1024", leftOut)
	}
	if c.ScrapeTimeout <= 0 {
		bad("scrape_timeout", "must be above 0; 2s suits most engines")
	}
	return errors.Join(errs...)
}

func (c *Config) validateAttach(bad func(field, format string, args ...any)) {
	if a, err := address.Parse(c.URL); err != nil {
		bad("url", "%v", err)
	} else if strings.HasSuffix(a.BasePath, "/v1") {
		bad("url", "%q ends with /v1; give the server's root, /v1 is added", c.URL)
	}
	if c.Binary != "" || len(c.Args) > 0 || len(c.Env) > 0 {
		bad("url", "is set, so the agent starts no engine; remove binary, args and env, or url")
	}
}

func (c *Config) validateSpawn(bad, missing func(key, format string, args ...any)) {
	if c.PIDFile != "" {
		bad("pid_file", "is of an engine that the agent does not start; remove it, or set url")
	}
	if c.Kind == OpenAICompat && c.Binary == "" {
		missing("url", "empty; an openai_compat engine needs a url to attach to, or a binary to start")
	}
	if c.Model == "" && c.Kind != OpenAICompat {
		missing("model", "empty; give the model to load, or %s to attach to a running engine",
			config.Mention{Key: "url", Flag: "--engine"})
	}
	if net.ParseIP(c.Host) == nil {
		bad("host", "%q is no IP address; 127.0.0.1 keeps other hosts away", c.Host)
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("port", "%d is not a port; use 0 for a free one", c.Port)
	}
	if c.Kind == SGLang && c.APIKeyFile != "" {
		bad("api_key_file", "a started sglang takes its key on the command line, where every user of the host sees "+
			"it; leave the key out: the engine listens on loopback only")
	}
	for _, a := range c.Args {
		if name, _, _ := strings.Cut(a, "="); c.Kind != OpenAICompat && (name == "--port" || name == "--host") {
			bad("args", "%s is the agent's to set; use %s", name, config.Mention{Key: strings.TrimPrefix(name, "--")})
		}
	}
	for _, e := range c.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			bad("env", "%q is not NAME=value", name)
		}
	}
	if c.StopGrace <= 0 || c.RestartDelay <= 0 || c.RestartDelayMax < c.RestartDelay {
		bad("restart_delay", "stop_grace and restart_delay must be above 0, and restart_delay_max no less than "+
			"restart_delay")
	}
}
