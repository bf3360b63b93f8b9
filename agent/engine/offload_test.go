package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOffload has a row for each pair of engine and offload, with the rendered command or the
// error.
func TestOffload(t *testing.T) {
	const port, host = "VLLM_NIXL_SIDE_CHANNEL_PORT=5600", "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.7"
	const lmcacheEnv = "LMCACHE_CONFIG_FILE=/state/lmcache.yaml PYTHONHASHSEED=0"
	const tiers = `{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,` +
		`"secondary_tiers":[{"type":"obj","store_config":{"bucket":"kvcache","endpoint_override":"127.0.0.1:9000","scheme":"http","access_key":"cgn-engine-60c283ca295fb895","secret_key":"cognitora"}}]}}`
	const keeper = `{"kv_connector":"KVCachedConnector","kv_role":"kv_both","kv_connector_module_path":"cognitora_kv.connector","kv_load_failure_policy":"recompute",` +
		`"kv_connector_extra_config":{"socket":"/run/cognitora/kv-lease.sock","staging":268435456,"node":"gpu1-9081"}}`
	rows := map[[2]string]struct{ argv, env string }{
		{VLLM, OffloadNone}:    {},
		{VLLM, OffloadNIXL}:    {`--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}`, host + " " + port},
		{VLLM, OffloadLMCache}: {`--kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}`, lmcacheEnv},
		{VLLM, OffloadNIXLLMCache}: {`--kv-transfer-config {"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` +
			`{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}]}}`, host + " " + port + " " + lmcacheEnv},
		{VLLM, OffloadKVBM}: {`--kv-transfer-config {"kv_connector":"DynamoConnector","kv_role":"kv_both","kv_connector_module_path":"kvbm.vllm_integration.connector"}`,
			"DYN_KVBM_CPU_CACHE_GB=8 DYN_KVBM_DISK_CACHE_GB=0"},
		{VLLM, OffloadKVCached}: {"--kv-transfer-config " + keeper, "PYTHONHASHSEED=0 NIXL_TELEMETRY_ENABLE=y"},
		{VLLM, OffloadNIXLKVCached}: {`--kv-transfer-config {"kv_connector":"MultiConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"connectors":[` +
			`{"kv_connector":"NixlConnector","kv_role":"kv_both"},` + keeper + `]}}`,
			host + " " + port + " PYTHONHASHSEED=0 NIXL_TELEMETRY_ENABLE=y"},
		{VLLM, OffloadKVCachedS3}: {"--kv-transfer-config " + tiers, "PYTHONHASHSEED=0 NIXL_TELEMETRY_ENABLE=y"},
		{VLLM, OffloadNIXLKVCachedS3}: {`--kv-transfer-config {"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` +
			`{"kv_connector":"NixlConnector","kv_role":"kv_both"},` + tiers + `]}}`,
			host + " " + port + " PYTHONHASHSEED=0 NIXL_TELEMETRY_ENABLE=y"},
		{VLLM, OffloadNIXLKVBM}: {`--kv-transfer-config {"kv_connector":"PdConnector","kv_role":"kv_both","kv_connector_module_path":"kvbm.vllm_integration.connector",` +
			`"kv_connector_extra_config":{"connectors":[{"kv_connector":"DynamoConnector","kv_role":"kv_both","kv_connector_module_path":"kvbm.vllm_integration.connector"},` +
			`{"kv_connector":"NixlConnector","kv_role":"kv_producer"}]}}`,
			host + " " + port + " DYN_KVBM_CPU_CACHE_GB=8 DYN_KVBM_DISK_CACHE_GB=0"},
		{VLLM, OffloadMooncake}: {`--kv-transfer-config {"kv_connector":"MooncakeConnector","kv_role":"kv_both"}`, "VLLM_MOONCAKE_BOOTSTRAP_PORT=8998"},
		{SGLang, OffloadNone}:   {},
		{SGLang, OffloadNIXL}: {"--disaggregation-mode prefill --disaggregation-transfer-backend nixl " +
			"--disaggregation-bootstrap-port 8998", ""},
		{SGLang, OffloadMooncake}: {"--disaggregation-mode prefill --disaggregation-transfer-backend mooncake " +
			"--disaggregation-bootstrap-port 8998", ""},
		{SGLang, OffloadHiCache}: {
			"--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through " +
				"--hicache-storage-backend nixl", ""},
		{LlamaCPP, OffloadNone}:     {},
		{OpenAICompat, OffloadNone}: {},
	}
	for _, kind := range []string{VLLM, SGLang, LlamaCPP, OpenAICompat} {
		for _, offload := range []string{OffloadNone, OffloadNIXL, OffloadLMCache, OffloadNIXLLMCache, OffloadKVBM,
			OffloadKVCached, OffloadHiCache, OffloadMooncake, OffloadNIXLKVBM, OffloadNIXLKVCached, OffloadKVCachedS3,
			OffloadNIXLKVCachedS3} {
			c := valid(func(c *Config) { c.Kind, c.KVOffload, c.Binary = kind, offload, "engine" })
			row, possible := rows[[2]string{kind, offload}]
			if err := c.Validate(); possible != (err == nil) ||
				!possible && !strings.Contains(err.Error(), "possible: "+strings.Join(offloads[kind], ", ")) {
				t.Errorf("%s with %s: %v", kind, offload, err)
			}
			if !possible {
				continue
			}
			plain := valid(func(c *Config) { c.Kind, c.Binary = kind, "engine" })
			before, envBefore := plain.Command(Launch{Port: 1})
			role := "both"
			if kind == SGLang || offload == OffloadNIXLKVBM {
				role = "prefill"
			}
			argv, env := c.Command(Launch{Port: 1, Role: role, Host: "10.0.0.7", StateDir: "/state", Node: "gpu1-9081"})
			if got := strings.Join(argv[len(before):], " "); !slices.Equal(argv[:len(before)], before) ||
				got != row.argv {
				t.Errorf("%s with %s adds\n %s, not\n %s", kind, offload, got, row.argv)
			}
			if got := strings.Join(env[len(envBefore):], " "); got != row.env {
				t.Errorf("%s with %s sets\n %s, not\n %s", kind, offload, got, row.env)
			}
		}
	}
}

// TestOffloadRoles: with NIXL and Mooncake a prefill node is a producer, and a decode node is a
// consumer.
func TestOffloadRoles(t *testing.T) {
	for role, want := range map[string]string{"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"} {
		for _, offload := range []string{OffloadNIXL, OffloadNIXLLMCache, OffloadNIXLKVCached, OffloadNIXLKVCachedS3,
			OffloadMooncake} {
			c := valid(func(c *Config) { c.KVOffload = offload })
			argv, _ := c.Command(Launch{Role: role})
			var got connector
			if err := json.Unmarshal([]byte(argv[len(argv)-1]), &got); err != nil || got.Role != want {
				t.Errorf("%s as %s: %s, %v", offload, role, got.Role, err)
			}
		}
	}
}

// TestKVCachedRoles: the connector of deploy/vllm keeps and loads blocks in every role, with every
// setting of its own.
func TestKVCachedRoles(t *testing.T) {
	const keeper = `{"kv_connector":"KVCachedConnector","kv_role":"kv_both","kv_connector_module_path":"cognitora_kv.connector","kv_load_failure_policy":"recompute",` +
		`"kv_connector_extra_config":{"socket":"/data/kv-lease.sock","resp":"[::1]:6380","revision":"b968826","staging":1048576}}`
	for role, word := range map[string]string{"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"} {
		for offload, want := range map[string]string{
			OffloadKVCached: keeper,
			OffloadNIXLKVCached: `{"kv_connector":"MultiConnector","kv_role":"` + word +
				`","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"` + word + `"},` + keeper + `]}}`,
		} {
			c := valid(func(c *Config) {
				c.KVOffload, c.Offload.LeaseSocket, c.Offload.RESP = offload, "/data/kv-lease.sock", "[::1]:6380"
				c.Offload.Revision, c.Offload.Staging = "b968826", 1<<20
			})
			if argv, _ := c.Command(Launch{Role: role}); c.Validate() != nil || argv[len(argv)-1] != want {
				t.Errorf("%s as %s: %v\n %s, not\n %s", offload, role, c.Validate(), argv[len(argv)-1], want)
			}
		}
	}
}

func TestOffloadProblems(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.KVOffload, c.URL = OffloadNIXL, "http://h:1" }, "engine.kv_offload: nixl is for an engine that the agent starts"},
		{func(c *Config) { c.KVOffload, c.Args = OffloadNIXL, []string{"--kv-transfer-config={}"} }, "engine.args: --kv-transfer-config is set by"},
		{func(c *Config) { c.KVOffload, c.Offload.NIXLPort = OffloadNIXLLMCache, 0 }, "engine.offload.nixl_port"},
		{func(c *Config) { c.KVOffload, c.Offload.RemoteURL = OffloadLMCache, "localhost" }, "engine.offload.remote_url"},
		{func(c *Config) { c.KVOffload, c.Offload.CPUBytes = OffloadKVBM, 1<<20 }, "engine.offload.cpu_bytes"},
		{func(c *Config) { c.KVOffload, c.Offload.CPUBytes = OffloadKVCached, 0 }, "engine.offload.cpu_bytes"},
		{func(c *Config) { c.KVOffload, c.Offload.S3Endpoint = OffloadKVCached, "localhost" }, "engine.offload.s3_endpoint"},
		{func(c *Config) { c.KVOffload, c.Offload.S3Bucket = OffloadNIXLKVCachedS3, "" }, "engine.offload.s3_bucket"},
		{func(c *Config) { c.KVOffload, c.Offload.LeaseSocket = OffloadKVCached, "kv-lease.sock" }, "engine.offload.lease_socket: \"kv-lease.sock\" is no absolute path"},
		{func(c *Config) { c.KVOffload, c.Offload.LeaseSocket = OffloadKVCached, "" }, "engine.offload.lease_socket"},
		{func(c *Config) {
			c.KVOffload, c.Offload.LeaseSocket = OffloadNIXLKVCached, "/"+strings.Repeat("x", 107)
		}, "engine.offload.lease_socket"},
		{func(c *Config) { c.KVOffload, c.Offload.RESP = OffloadKVCached, "redis://127.0.0.1:6380" }, "engine.offload.resp: \"redis://127.0.0.1:6380\" is not HOST:PORT"},
		{func(c *Config) { c.KVOffload, c.Offload.RESP = OffloadKVCached, ":6380" }, "engine.offload.resp"},
		{func(c *Config) { c.KVOffload, c.Offload.RESP = OffloadKVCached, "cache:0" }, "engine.offload.resp"},
		{func(c *Config) { c.KVOffload, c.Offload.Revision = OffloadKVCached, strings.Repeat("x", 129) }, "engine.offload.revision: it has 129 bytes"},
		{func(c *Config) { c.KVOffload, c.Offload.Revision = OffloadKVCached, "a\nb" }, "engine.offload.revision"},
		{func(c *Config) { c.KVOffload, c.Offload.Staging = OffloadNIXLKVCached, 1<<20-1 }, "engine.offload.staging"},
		{func(c *Config) { c.Kind, c.KVOffload, c.Offload.HiCacheRatio = SGLang, OffloadHiCache, 1 }, "engine.offload.hicache_ratio"},
		{func(c *Config) {
			c.Kind, c.KVOffload, c.Args = SGLang, OffloadHiCache, []string{"--hicache-ratio", "3"}
		}, "engine.args: --hicache-ratio"},
		{func(c *Config) {
			c.Kind, c.KVOffload, c.Offload.HiCacheStorage, c.Offload.S3Bucket = SGLang, OffloadHiCache, "kvcached", "b"
		}, "engine.offload.s3_bucket"},
	} {
		if err := valid(c.change).Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, not %s", err, c.want)
		}
	}
}

// TestLMCacheFile: the agent's own file names the cache daemon, and only the agent's user may read
// it.
func TestLMCacheFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	c := valid(func(c *Config) { c.KVOffload = OffloadLMCache })
	if err := c.writeLMCacheFile(dir); err != nil || !c.NeedsStateDir() {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "lmcache.yaml")
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), `remote_url: "redis://127.0.0.1:6380"`) ||
		!strings.Contains(string(text), "max_local_cpu_size: 8\n") ||
		!strings.Contains(string(text), "pre_caching_hash_algorithm: sha256_cbor\n") {
		t.Errorf("%s, %v", text, err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	c.Offload.LMCacheConfig = "/etc/lmcache.yaml"
	if _, env := c.Command(Launch{StateDir: dir}); c.NeedsStateDir() ||
		env[0] != "LMCACHE_CONFIG_FILE=/etc/lmcache.yaml" {
		t.Error(env)
	}
}

// TestReadsNothing checks of which engines the agent knows that they can read no block of a cache.
func TestReadsNothing(t *testing.T) {
	events := []string{"--kv-events-config", "{}", "--kv-cache-dtype=fp8", "--enable-prefix-caching"}
	for i, c := range []struct {
		config Config
		want   bool
	}{
		{Config{Kind: VLLM, Args: events}, true},
		{Config{Kind: VLLM, KVOffload: OffloadNone}, true},
		{Config{Kind: VLLM, KVOffload: OffloadNIXL}, true},
		{Config{Kind: SGLang, KVOffload: OffloadMooncake}, true},
		{Config{Kind: VLLM, URL: "http://h:1"}, false}, // somebody else started it
		{Config{Kind: OpenAICompat, Binary: "engine"}, false},
		{Config{Kind: VLLM, KVOffload: OffloadNIXLKVCached}, false},
		{Config{Kind: VLLM, KVOffload: OffloadLMCache}, false},
		{Config{Kind: SGLang, KVOffload: OffloadHiCache}, false},
		{Config{Kind: VLLM, Args: []string{"--kv_transfer_config={}"}}, false},
		{Config{Kind: VLLM, Args: []string{"--kv-offloading-size", "4"}}, false},
		{Config{Kind: VLLM, Args: []string{"--config", "vllm.yaml"}}, false},
		{Config{Kind: SGLang, Args: []string{"--enable-hierarchical-cache"}}, false},
		{Config{Kind: SGLang, Args: []string{"--enable-lmcache"}}, false},
	} {
		if got := c.config.ReadsNothing(); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}
