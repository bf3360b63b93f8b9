package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
)

// Values of Config.KVOffload: which software moves a started engine's KV blocks out of the GPU.
const (
	OffloadNone        = "none"
	OffloadNIXL        = "nixl"
	OffloadLMCache     = "lmcache"
	OffloadNIXLLMCache = "nixl+lmcache"
	OffloadKVBM        = "kvbm"
	OffloadKVCached    = "kvcached"
	OffloadHiCache     = "hicache"
)

// offloads lists the supported offloads of each engine.
var offloads = map[string][]string{
	VLLM:         {OffloadNone, OffloadNIXL, OffloadLMCache, OffloadNIXLLMCache, OffloadKVBM, OffloadKVCached},
	SGLang:       {OffloadNone, OffloadHiCache},
	LlamaCPP:     {OffloadNone},
	OpenAICompat: {OffloadNone},
}

// Offload is the section engine.offload: settings of the software that kv_offload names.
type Offload struct {
	CPUBytes  config.Size `toml:"cpu_bytes" default:"8GiB" help:"host memory in which a started vllm keeps KV blocks with kvbm, kvcached or lmcache"`
	DiskBytes config.Size `toml:"disk_bytes" default:"0" help:"disk space in which kvbm keeps KV blocks; whole GiB"`

	RemoteURL     string `toml:"remote_url" default:"redis://127.0.0.1:6380" help:"address where the connector lmcache keeps its blocks beyond host memory: the RESP listener of cgn-kvcached, or another redis"`
	LMCacheConfig string `toml:"lmcache_config" help:"LMCache's own configuration file; empty: the agent writes one to agent.state_dir, with remote_url and cpu_bytes"`

	S3Endpoint string `toml:"s3_endpoint" default:"127.0.0.1:9000" help:"address where the connector kvcached keeps blocks beyond host memory: the S3 listener of this host's cgn-kvcached, which needs no key on loopback"`
	S3Bucket   string `toml:"s3_bucket" default:"kv" help:"bucket for the blocks of kvcached"`

	NIXLHost string `toml:"nixl_host" help:"address under which other nodes reach this engine's NIXL side channel; empty: the host of agent.advertise, or else of agent.listen"`
	NIXLPort int    `toml:"nixl_port" default:"5600" help:"first port of the NIXL side channel, which takes one port per rank; engines of one host need different ports"`

	HiCacheRatio   float64 `toml:"hicache_ratio" default:"2" help:"host memory of SGLang's hierarchical cache, as a multiple of the GPU's KV memory"`
	HiCacheStorage string  `toml:"hicache_storage" default:"nixl" help:"storage backend of SGLang's hierarchical cache; empty: host memory only"`
}

// connector is the value of vLLM's --kv-transfer-config.
type connector struct {
	Connector string `json:"kv_connector"`
	Role      string `json:"kv_role"`
	Module    string `json:"kv_connector_module_path,omitempty"`
	Extra     any    `json:"kv_connector_extra_config,omitempty"`
}

type connectors struct {
	Connectors []connector `json:"connectors"`
}

type tiering struct {
	Spec      string      `json:"spec_name"`
	CPUBytes  int64       `json:"cpu_bytes_to_use"`
	Secondary []secondary `json:"secondary_tiers"`
}

type secondary struct {
	Type  string `json:"type"`
	Store store  `json:"store_config"`
}

type store struct {
	Bucket    string `json:"bucket"`
	Endpoint  string `json:"endpoint_override"`
	Scheme    string `json:"scheme"`
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// openKey is both keys if the listener asks for none: the connector always signs requests.
const openKey = "cognitora"

// offloadCommand returns the arguments and environment that kv_offload adds to the engine's.
func (c *Config) offloadCommand(l Launch) (argv, env []string) {
	o := &c.Offload
	switch c.KVOffload {
	case OffloadNIXL:
		return transfer(nixl(l.Role)), o.nixlEnv(l)
	case OffloadLMCache:
		return transfer(lmcache()), o.lmcacheEnv(l)
	case OffloadNIXLLMCache:
		both := connectors{[]connector{nixl(l.Role), lmcache()}}
		return transfer(connector{Connector: "MultiConnector", Role: kvRole(l.Role), Extra: both}),
			append(o.nixlEnv(l), o.lmcacheEnv(l)...)
	case OffloadKVBM:
		return transfer(connector{Connector: "DynamoConnector", Role: "kv_both",
				Module: "kvbm.vllm_integration.connector"}),
			[]string{"DYN_KVBM_CPU_CACHE_GB=" + gib(o.CPUBytes), "DYN_KVBM_DISK_CACHE_GB=" + gib(o.DiskBytes)}
	case OffloadKVCached:
		tier := secondary{"obj", store{o.S3Bucket, o.S3Endpoint, "http", openKey, openKey}}
		return transfer(connector{Connector: "OffloadingConnector", Role: "kv_both",
				Extra: tiering{"TieringOffloadingSpec", int64(o.CPUBytes), []secondary{tier}}}),
			[]string{sameHashes}
	case OffloadHiCache:
		argv = []string{"--enable-hierarchical-cache", "--hicache-ratio", strconv.FormatFloat(o.HiCacheRatio, 'g', -1,
			64), "--hicache-write-policy", "write_through"}
		return appendText(argv, "--hicache-storage-backend", o.HiCacheStorage), nil
	}
	return nil, nil
}

// sameHashes makes all engines of a fleet hash a block alike. Without PYTHONHASHSEED each process
// hashes with its own seed.
const sameHashes = "PYTHONHASHSEED=0"

func transfer(c connector) []string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return []string{"--kv-transfer-config", string(text)}
}

func nixl(role string) connector { return connector{Connector: "NixlConnector", Role: kvRole(role)} }

func lmcache() connector { return connector{Connector: "LMCacheConnectorV1", Role: "kv_both"} }

// kvRole returns vLLM's name for the node's role.
func kvRole(role string) string {
	switch role {
	case "prefill":
		return "kv_producer"
	case "decode":
		return "kv_consumer"
	}
	return "kv_both"
}

func (o *Offload) nixlEnv(l Launch) []string {
	env := appendEnv(nil, "VLLM_NIXL_SIDE_CHANNEL_HOST", cmp.Or(o.NIXLHost, l.Host))
	return append(env, "VLLM_NIXL_SIDE_CHANNEL_PORT="+strconv.Itoa(o.NIXLPort))
}

func (o *Offload) lmcacheEnv(l Launch) []string {
	return []string{"LMCACHE_CONFIG_FILE=" + o.lmcacheFile(l.StateDir), sameHashes}
}

func (o *Offload) lmcacheFile(stateDir string) string {
	return cmp.Or(o.LMCacheConfig, filepath.Join(stateDir, "lmcache.yaml"))
}

// gib formats a size in whole GiB, as KVBM reads it.
func gib(s config.Size) string { return strconv.FormatInt(int64(s)>>30, 10) }

// NeedsStateDir tells whether the agent writes LMCache's configuration.
func (c *Config) NeedsStateDir() bool {
	return c.Spawns() && c.usesLMCache() && c.Offload.LMCacheConfig == ""
}

func (c *Config) usesLMCache() bool { return strings.Contains(c.KVOffload, OffloadLMCache) }

// writeLMCacheFile writes LMCache's configuration. Blocks of 256 tokens are LMCache's own default.
func (c *Config) writeLMCacheFile(stateDir string) error {
	if !c.NeedsStateDir() {
		return nil
	}
	text := fmt.Sprintf("chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: %g\nremote_url: %q\nremote_serde: "+
		"\"naive\"\n",
		float64(c.Offload.CPUBytes)/(1<<30), c.Offload.RemoteURL)
	name := c.Offload.lmcacheFile(stateDir)
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("agent.state_dir: %w", err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return wrong("offload.lmcache_config", "LMCache's configuration cannot be written: %w", err)
	}
	return nil
}

func (c *Config) validateOffload(bad func(field, format string, args ...any)) {
	if c.KVOffload == OffloadNone || c.KVOffload == "" {
		return
	}
	if !c.Spawns() {
		bad("kv_offload", "%s is for an engine that the agent starts; start this one with it, or remove %s",
			c.KVOffload, config.Mention{Key: "url"})
		return
	}
	if possible := offloads[c.Kind]; !slices.Contains(possible, c.KVOffload) {
		bad("kv_offload", "%s cannot offload with %s; possible: %s", c.Kind, c.KVOffload, strings.Join(possible, ", "))
		return
	}
	for _, a := range c.Args {
		if name, _, _ := strings.Cut(a, "="); name == "--kv-transfer-config" ||
			strings.HasPrefix(name, "--hicache-") && c.KVOffload == OffloadHiCache {
			bad("args", "%s is set by %s = %q; remove one of the two", name, config.Mention{Key: "kv_offload"},
				c.KVOffload)
		}
	}
	c.Offload.validate(c.KVOffload, bad)
}

// validate checks the settings that the given software uses.
func (o *Offload) validate(offload string, bad func(field, format string, args ...any)) {
	switch offload {
	case OffloadKVBM:
		if o.CPUBytes%(1<<30) != 0 || o.DiskBytes%(1<<30) != 0 || o.CPUBytes <= 0 || o.DiskBytes < 0 {
			bad("offload.cpu_bytes", "%s, and disk_bytes %s: kvbm takes whole GiB, at least 1 of memory", o.CPUBytes,
				o.DiskBytes)
		}
	case OffloadKVCached:
		if o.CPUBytes <= 0 {
			bad("offload.cpu_bytes", "%s; blocks pass through host memory: give at least that of a few blocks, such "+
				"as 1GiB", o.CPUBytes)
		}
		if _, port, err := net.SplitHostPort(o.S3Endpoint); err != nil || port == "" {
			bad("offload.s3_endpoint", "%q is not host:port; use s3.listen of cgn-kvcached", o.S3Endpoint)
		}
		if o.S3Bucket == "" {
			bad("offload.s3_bucket", "empty; any name will do")
		}
	case OffloadHiCache:
		if o.HiCacheRatio <= 1 {
			bad("offload.hicache_ratio", "%g; SGLang wants more host memory than GPU memory: above 1", o.HiCacheRatio)
		}
	}
	if strings.Contains(offload, OffloadNIXL) && (o.NIXLPort < 1 || o.NIXLPort > 65535) {
		bad("offload.nixl_port", "%d is not a port; 5600 is usual", o.NIXLPort)
	}
	if strings.Contains(offload, OffloadLMCache) && o.LMCacheConfig == "" && !strings.Contains(o.RemoteURL, "://") {
		bad("offload.remote_url", "%q is no URL; use redis://HOST:PORT with the RESP listener of cgn-kvcached",
			o.RemoteURL)
	}
}
