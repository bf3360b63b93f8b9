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
	"unicode"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// Values of Config.KVOffload: which software moves a started engine's KV blocks out of the GPU.
const (
	OffloadNone           = "none"
	OffloadNIXL           = "nixl"
	OffloadMooncake       = "mooncake"
	OffloadLMCache        = "lmcache"
	OffloadNIXLLMCache    = "nixl+lmcache"
	OffloadKVBM           = "kvbm"
	OffloadNIXLKVBM       = "nixl+kvbm"
	OffloadKVCached       = "kvcached"
	OffloadNIXLKVCached   = "nixl+kvcached"
	OffloadKVCachedS3     = "kvcached-s3"
	OffloadNIXLKVCachedS3 = "nixl+kvcached-s3"
	OffloadHiCache        = "hicache"
)

// offloads lists the supported offloads of each engine.
var offloads = map[string][]string{
	VLLM: {OffloadNone, OffloadNIXL, OffloadMooncake, OffloadLMCache, OffloadNIXLLMCache, OffloadKVBM, OffloadNIXLKVBM,
		OffloadKVCached, OffloadNIXLKVCached, OffloadKVCachedS3, OffloadNIXLKVCachedS3},
	SGLang:       {OffloadNone, OffloadNIXL, OffloadMooncake, OffloadHiCache},
	LlamaCPP:     {OffloadNone},
	OpenAICompat: {OffloadNone},
}

// Offload is the section engine.offload: settings of the software that kv_offload names.
type Offload struct {
	CPUBytes  config.Size `toml:"cpu_bytes" default:"8GiB" help:"host memory in which a started vllm keeps KV blocks with kvbm, lmcache or kvcached-s3, and with kvcached if its Python lacks the connector"`
	DiskBytes config.Size `toml:"disk_bytes" default:"0" help:"disk space in which kvbm keeps KV blocks; whole GiB"`

	RemoteURL     string `toml:"remote_url" default:"redis://127.0.0.1:6380" help:"address where the connector lmcache keeps its blocks beyond host memory: the RESP listener of cgn-kvcached, or another redis"`
	LMCacheConfig string `toml:"lmcache_config" help:"LMCache's own configuration file; empty: the agent writes one to agent.state_dir, with remote_url and cpu_bytes"`

	LeaseSocket string      `toml:"lease_socket" default:"/run/cognitora/kv-lease.sock" help:"lease socket of this host's cgn-kvcached, by which the connector kvcached keeps blocks: kv-lease.sock beside the daemon's gRPC socket (kvcached.sock), so in kvcached.data if the daemon can neither write to /run/cognitora nor make it"`
	RESP        string      `toml:"resp" help:"HOST:PORT of the RESP listener of cgn-kvcached, which the connector kvcached uses if it cannot have lease_socket; empty: nothing stands in for it"`
	Revision    string      `toml:"revision" help:"revision of the model's weights in the namespaces of the engine's blocks, 128 bytes at most; routers count blocks of one revision only, and engines with the connector kvcached share no others. It holds for that connector, LMCache, HiCache and vLLM's own tiers. Empty: the connector works it out from the model's files, and the others name none"`
	Staging     config.Size `toml:"staging" default:"256MiB" help:"most bytes of blocks that wait in the connector kvcached to be saved; 1MiB at least"`

	S3Endpoint string `toml:"s3_endpoint" default:"127.0.0.1:9000" help:"address where hicache_storage kvcached keeps pages, and where vLLM's own tiers keep blocks beyond host memory with kvcached-s3, and with kvcached if the engine's Python lacks the connector: the S3 listener of this host's cgn-kvcached, which needs no key on loopback"`
	S3Bucket   string `toml:"s3_bucket" default:"kvcache" help:"bucket for blocks at s3_endpoint: 3 to 63 of a-z, 0-9, - and ."`

	NIXLHost string `toml:"nixl_host" help:"address under which other nodes reach this engine's NIXL side channel; empty: the host of agent.advertise, or else of agent.listen"`
	NIXLPort int    `toml:"nixl_port" default:"5600" help:"first port of the NIXL side channel, which takes one port per rank; engines of one host need different ports"`

	HiCacheRatio   float64 `toml:"hicache_ratio" default:"2" help:"host memory of SGLang's hierarchical cache, as a multiple of the GPU's KV memory"`
	HiCacheStorage string  `toml:"hicache_storage" default:"nixl" help:"storage backend of SGLang's hierarchical cache; kvcached: NIXL's object store at s3_endpoint and in s3_bucket, the S3 listener of this host's cgn-kvcached; empty: host memory only"`
}

// connector is the value of vLLM's --kv-transfer-config.
type connector struct {
	Connector string `json:"kv_connector"`
	Role      string `json:"kv_role"`
	Module    string `json:"kv_connector_module_path,omitempty"`
	OnFailure string `json:"kv_load_failure_policy,omitempty"` // "": fail, vLLM's default
	Extra     any    `json:"kv_connector_extra_config,omitempty"`
}

type connectors struct {
	Connectors []connector `json:"connectors"`
}

// leased is the extra configuration of the connector of deploy/vllm.
type leased struct {
	Socket   string `json:"socket"`
	RESP     string `json:"resp,omitempty"`
	Revision string `json:"revision,omitempty"`
	Staging  int64  `json:"staging"` // bytes
	Node     string `json:"node,omitempty"`
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

// openSecret is the secret key. The listener asks for none; the connector always signs requests.
const openSecret = "cognitora"

// offloadCommand returns the arguments and environment that kv_offload adds to the engine's.
func (c *Config) offloadCommand(l Launch) (argv, env []string) {
	if c.Kind == SGLang {
		return c.sglangOffload(l.Role), nil
	}
	o := &c.Offload
	switch c.KVOffload {
	case OffloadNIXL:
		return transfer(nixl(l.Role)), o.nixlEnv(l)
	case OffloadMooncake:
		return transfer(connector{Connector: "MooncakeConnector", Role: kvRole(l.Role)}), c.mooncakeEnv(l.Role)
	case OffloadLMCache:
		return transfer(lmcache()), o.lmcacheEnv(l)
	case OffloadNIXLLMCache:
		return stack(l.Role, lmcache()), append(o.nixlEnv(l), o.lmcacheEnv(l)...)
	case OffloadKVBM:
		return transfer(kvbm()), o.kvbmEnv()
	case OffloadNIXLKVBM:
		if l.Role == roleDecode { // KVBM is of the nodes that prefill
			return transfer(nixl(l.Role)), o.nixlEnv(l)
		}
		both := connectors{[]connector{kvbm(), nixl(l.Role)}}
		return transfer(connector{Connector: "PdConnector", Role: "kv_both", Module: kvbmModule, Extra: both}),
			append(o.nixlEnv(l), o.kvbmEnv()...)
	case OffloadKVCached:
		return transfer(o.kvcached(l)), tiersEnv
	case OffloadNIXLKVCached:
		return stack(l.Role, o.kvcached(l)), append(o.nixlEnv(l), tiersEnv...)
	case OffloadKVCachedS3:
		return transfer(o.tiers(l)), tiersEnv
	case OffloadNIXLKVCachedS3:
		return stack(l.Role, o.tiers(l)), append(o.nixlEnv(l), tiersEnv...)
	}
	return nil, nil
}

// sglangOffload returns the arguments of an SGLang.
func (c *Config) sglangOffload(role string) []string {
	o := &c.Offload
	switch c.KVOffload {
	case OffloadNIXL, OffloadMooncake:
		argv := []string{modeArg, role, backendArg, c.KVOffload}
		if role == rolePrefill {
			argv = append(argv, bootstrapArg, c.bootstrapPort())
		}
		return argv
	case OffloadHiCache:
		argv := []string{"--enable-hierarchical-cache", "--hicache-ratio",
			strconv.FormatFloat(o.HiCacheRatio, 'g', -1, 64), "--hicache-write-policy", "write_through"}
		if o.HiCacheStorage == hiCacheKVCached {
			return append(argv, c.pagesInStore()...)
		}
		return appendText(argv, "--hicache-storage-backend", o.HiCacheStorage)
	}
	return nil
}

// sameHashes makes all engines of a fleet hash a block alike. Without PYTHONHASHSEED each process
// hashes with its own seed.
const sameHashes = "PYTHONHASHSEED=0"

// tiersEnv is the environment of vLLM's own tiers, and of the connector whose place they may take.
// The object tier (vLLM 0.32) asks NIXL how long each transfer took, and the engine ends if NIXL
// has not measured it.
var tiersEnv = []string{sameHashes, "NIXL_TELEMETRY_ENABLE=y"}

func transfer(c connector) []string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return []string{"--kv-transfer-config", string(text)}
}

func nixl(role string) connector { return connector{Connector: "NixlConnector", Role: kvRole(role)} }

// stack returns the argument for NIXL beside a connector that keeps blocks. vLLM reads the policy
// for failed loads from the outer connector only, so it counts for NIXL too.
func stack(role string, keeper connector) []string {
	return transfer(connector{Connector: "MultiConnector", Role: kvRole(role), OnFailure: keeper.OnFailure,
		Extra: connectors{[]connector{nixl(role), keeper}}})
}

func lmcache() connector { return connector{Connector: "LMCacheConnectorV1", Role: "kv_both"} }

// kvbmModule has KVBM's connectors.
const kvbmModule = "kvbm.vllm_integration.connector"

func kvbm() connector {
	return connector{Connector: "DynamoConnector", Role: "kv_both", Module: kvbmModule}
}

// connectorPackage is the Python package of deploy/vllm, and connectorModule has its connector.
const (
	connectorPackage = "cognitora_kv"
	connectorModule  = connectorPackage + ".connector"
)

// kvcached returns the connector of deploy/vllm. It keeps and loads blocks in every role.
func (o *Offload) kvcached(l Launch) connector {
	return connector{Connector: "KVCachedConnector", Role: "kv_both", Module: connectorModule,
		OnFailure: "recompute", Extra: leased{o.LeaseSocket, o.RESP, o.Revision, int64(o.Staging), l.Node}}
}

// overS3 returns the configuration for a Python without the connector of deploy/vllm: vLLM's own
// tiers take its place. overS3 returns nil if kv_offload does not name the connector.
func (c *Config) overS3() *Config {
	instead := map[string]string{OffloadKVCached: OffloadKVCachedS3, OffloadNIXLKVCached: OffloadNIXLKVCachedS3}
	if instead[c.KVOffload] == "" {
		return nil
	}
	own := *c
	own.KVOffload = instead[c.KVOffload]
	return &own
}

// tiers returns vLLM's own tiers: host memory, and beyond it the S3 listener. The access key tells
// the listener which engine it is.
func (o *Offload) tiers(l Launch) connector {
	tier := secondary{"obj", store{o.S3Bucket, o.S3Endpoint, "http", vllmtier.Client(l.Node), openSecret}}
	return connector{Connector: "OffloadingConnector", Role: "kv_both",
		Extra: tiering{"TieringOffloadingSpec", int64(o.CPUBytes), []secondary{tier}}}
}

// Roles of a node.
const (
	rolePrefill = string(cluster.RolePrefill)
	roleDecode  = string(cluster.RoleDecode)
)

// kvRole returns vLLM's name for the node's role.
func kvRole(role string) string {
	switch role {
	case rolePrefill:
		return "kv_producer"
	case roleDecode:
		return "kv_consumer"
	}
	return "kv_both"
}

// sideChannelHost is the variable with the address of NIXL's side channel in vLLM.
const sideChannelHost = "VLLM_NIXL_SIDE_CHANNEL_HOST"

func (o *Offload) nixlEnv(l Launch) []string {
	env := appendEnv(nil, sideChannelHost, cmp.Or(o.NIXLHost, l.Host))
	return append(env, "VLLM_NIXL_SIDE_CHANNEL_PORT="+strconv.Itoa(o.NIXLPort))
}

// mooncakeEnv names the port of the bootstrap server, which nodes have that prefill.
func (c *Config) mooncakeEnv(role string) []string {
	if role == roleDecode {
		return nil
	}
	return []string{mooncakePort + "=" + c.bootstrapPort()}
}

// mooncakePort is the variable with the port of Mooncake's bootstrap server in vLLM.
const mooncakePort = "VLLM_MOONCAKE_BOOTSTRAP_PORT"

func (o *Offload) kvbmEnv() []string {
	return []string{"DYN_KVBM_CPU_CACHE_GB=" + gib(o.CPUBytes), "DYN_KVBM_DISK_CACHE_GB=" + gib(o.DiskBytes)}
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

// LMCacheURL returns the remote_url of the LMCache whose configuration the agent writes; empty:
// there is none.
func (c *Config) LMCacheURL() string {
	if !c.NeedsStateDir() {
		return ""
	}
	return c.Offload.RemoteURL
}

// cacheArgs begin the arguments that give an engine a cache beyond its memory, or that may name a
// file which does.
var cacheArgs = []string{"--kv-t", "--kv-o", "--hicache", "--enable-h", "--enable-lm", "--conf"}

// ReadsNothing says that a started engine can read no block of a cgn-kvcached: it has no cache
// beyond its memory. NIXL and Mooncake only hand blocks over. false: it may have one.
func (c *Config) ReadsNothing() bool {
	switch {
	case !c.Spawns(), c.Kind != VLLM && c.Kind != SGLang,
		!slices.Contains([]string{"", OffloadNone, OffloadNIXL, OffloadMooncake}, c.KVOffload):
		return false
	}
	return !slices.ContainsFunc(c.Args, func(a string) bool {
		return slices.ContainsFunc(cacheArgs, func(begin string) bool { return strings.HasPrefix(flagName(a), begin) })
	})
}

// TierBucket returns the bucket in which vLLM's own tiers keep blocks, or would keep them if the
// engine's Python lacked the connector of deploy/vllm (Engine.OwnTiers). Empty: there are no tiers.
func (c *Config) TierBucket() string {
	if !c.Spawns() || !strings.Contains(c.KVOffload, OffloadKVCached) {
		return ""
	}
	return c.Offload.S3Bucket
}

// writeLMCacheFile writes LMCache's configuration. Blocks of 256 tokens are LMCache's own default.
// With sha256_cbor and sameHashes the name of a block follows from its token ids.
func (c *Config) writeLMCacheFile(stateDir string) error {
	if !c.NeedsStateDir() {
		return nil
	}
	text := fmt.Sprintf("chunk_size: 256\npre_caching_hash_algorithm: sha256_cbor\nlocal_cpu: true\n"+
		"max_local_cpu_size: %g\nremote_url: %q\nremote_serde: \"naive\"\n",
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

// disaggregationArgs are the arguments of an SGLang that kv_offload sets.
var disaggregationArgs = []string{modeArg, backendArg, bootstrapArg}

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
		name := flagName(a)
		if name == "--kv-transfer-config" || c.KVOffload == OffloadHiCache && strings.HasPrefix(name, "--hicache-") ||
			c.KVOffload != OffloadHiCache && slices.Contains(disaggregationArgs, name) {
			bad("args", "%s is set by %s = %q; remove one of the two", name, config.Mention{Key: "kv_offload"},
				c.KVOffload)
		}
	}
	c.Offload.validate(c.Kind, c.KVOffload, bad)
}

// validate checks the settings that the given software uses.
func (o *Offload) validate(kind, offload string, bad func(field, format string, args ...any)) {
	uses := func(part string) bool { return slices.Contains(strings.Split(offload, "+"), part) }
	whole := o.CPUBytes%(1<<30) == 0 && o.DiskBytes%(1<<30) == 0
	if uses(OffloadKVBM) && (!whole || o.CPUBytes <= 0 || o.DiskBytes < 0) {
		bad("offload.cpu_bytes", "%s, and disk_bytes %s: kvbm takes whole GiB, at least 1 of memory", o.CPUBytes,
			o.DiskBytes)
	}
	if uses(OffloadKVCached) {
		o.validateKVCached(bad)
	}
	if uses(OffloadKVCached) || uses(OffloadKVCachedS3) {
		o.validateTiers(bad)
	}
	if uses(OffloadHiCache) && o.HiCacheRatio <= 1 {
		bad("offload.hicache_ratio", "%g; SGLang wants more host memory than GPU memory: above 1", o.HiCacheRatio)
	}
	if uses(OffloadHiCache) && o.HiCacheStorage == hiCacheKVCached {
		o.validateStore(bad)
	}
	if uses(OffloadNIXL) && kind == VLLM && (o.NIXLPort < 1 || o.NIXLPort > 65535) {
		bad("offload.nixl_port", "%d is not a port; 5600 is usual", o.NIXLPort)
	}
	if uses(OffloadLMCache) && o.LMCacheConfig == "" && !strings.Contains(o.RemoteURL, "://") {
		bad("offload.remote_url", "%q is no URL; use redis://HOST:PORT with the RESP listener of cgn-kvcached",
			o.RemoteURL)
	}
}

const (
	maxSocket   = 107     // bytes of a Unix socket's path
	maxRevision = 128     // bytes; a namespace of blocks has 512 in all
	minStaging  = 1 << 20 // bytes
)

// validateKVCached checks the settings of the connector of deploy/vllm.
func (o *Offload) validateKVCached(bad func(field, format string, args ...any)) {
	if !filepath.IsAbs(o.LeaseSocket) || len(o.LeaseSocket) > maxSocket {
		bad("offload.lease_socket", "%q is no absolute path of %d bytes at most; give that of kv-lease.sock, which "+
			"cgn-kvcached logs at its start", o.LeaseSocket, maxSocket)
	}
	if o.RESP != "" {
		if host, port, err := net.SplitHostPort(o.RESP); err != nil || host == "" || !isPort(port) {
			bad("offload.resp", "%q is not HOST:PORT; use resp.listen of cgn-kvcached, or leave it out", o.RESP)
		}
	}
	if len(o.Revision) > maxRevision || strings.ContainsFunc(o.Revision, unicode.IsControl) {
		bad("offload.revision", "it has %d bytes, or control characters; give %d bytes at most, such as the weights' "+
			"commit", len(o.Revision), maxRevision)
	}
	if o.Staging < minStaging {
		bad("offload.staging", "%s; give room for a few blocks, 1MiB at least; 256MiB is usual", o.Staging)
	}
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// validateTiers checks the settings of vLLM's own tiers, which also stand in for the connector of
// deploy/vllm.
func (o *Offload) validateTiers(bad func(field, format string, args ...any)) {
	if o.CPUBytes <= 0 {
		bad("offload.cpu_bytes", "%s; blocks pass through host memory: give at least that of a few blocks, such "+
			"as 1GiB", o.CPUBytes)
	}
	o.validateStore(bad)
}

// validateStore checks the settings of the S3 listener.
func (o *Offload) validateStore(bad func(field, format string, args ...any)) {
	if _, port, err := net.SplitHostPort(o.S3Endpoint); err != nil || port == "" {
		bad("offload.s3_endpoint", "%q is not host:port; use s3.listen of cgn-kvcached", o.S3Endpoint)
	}
	if n := len(o.S3Bucket); n < 3 || n > 63 {
		bad("offload.s3_bucket", "%q has %d characters; any name of 3 to 63 will do", o.S3Bucket, n)
	}
}
