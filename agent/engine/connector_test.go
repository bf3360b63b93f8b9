package engine

import (
	"fmt"
	"strings"
	"testing"
)

// with returns a configuration of a started engine, or of an attached one.
func with(kind, offload string, args ...string) func(*Config) {
	return func(c *Config) { c.Kind, c.KVOffload, c.Args, c.Binary = kind, offload, args, "engine" }
}

func attached(kind, connector, bootstrap string) func(*Config) {
	return func(c *Config) {
		c.Kind, c.URL, c.Connector, c.Bootstrap = kind, "http://127.0.0.1:8000", connector, bootstrap
	}
}

func TestHandover(t *testing.T) {
	const multi = `--kv-transfer-config={"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":` +
		`{"connectors":[{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"},{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}]}}`
	for _, c := range []struct {
		name   string
		change func(*Config)
		role   string
		want   string // connector and bootstrap
	}{
		{"nixl", with(VLLM, OffloadNIXL), "prefill", "nixl "},
		{"nixl in both roles", with(VLLM, OffloadNIXL), "both", "nixl "},
		{"stack", with(VLLM, OffloadNIXLKVBM), "decode", "nixl "},
		{"stack with the cache", with(VLLM, OffloadNIXLKVCached), "decode", "nixl "},
		{"stack with tiers", with(VLLM, OffloadNIXLKVCachedS3), "prefill", "nixl "},
		{"mooncake", with(VLLM, OffloadMooncake), "prefill", "mooncake :8998"},
		{"mooncake decodes", with(VLLM, OffloadMooncake), "decode", "mooncake "},
		{"mooncake in both roles", with(VLLM, OffloadMooncake), "both", "mooncake :8998"},
		{"keeps blocks only", with(VLLM, OffloadLMCache), "both", " "},
		{"keeps blocks in the cache", with(VLLM, OffloadKVCached), "both", " "},
		{"sglang", with(SGLang, OffloadNIXL), "prefill", "sglang :8998"},
		{"sglang decodes", with(SGLang, OffloadMooncake), "decode", "sglang "},
		{"sglang, both", with(SGLang, OffloadNone), "both", " "},
		{"own port", func(c *Config) { with(SGLang, OffloadNIXL)(c); c.Bootstrap = ":9001" }, "prefill",
			"sglang :9001"},
		{"own host", func(c *Config) { with(VLLM, OffloadMooncake)(c); c.Bootstrap = "p.example:9001" }, "prefill",
			"mooncake p.example:9001"},
		{"by hand, nixl", with(VLLM, OffloadNone, "--kv-transfer-config",
			`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`), "prefill", "nixl "},
		{"by hand, push", with(VLLM, OffloadNone, "--kv-transfer-config", `{"kv_connector":"NixlPushConnector"}`), "both", " "},
		{"by hand, no JSON", with(VLLM, OffloadNone, "--kv-transfer-config", "file.json"), "both", " "},
		{"by hand, no value", with(VLLM, OffloadNone, "--kv-transfer-config"), "both", " "},
		{"by hand, several", func(c *Config) {
			with(VLLM, OffloadNone, multi)(c)
			c.Env = []string{"VLLM_MOONCAKE_BOOTSTRAP_PORT=9002"}
		}, "prefill", "mooncake :9002"},
		{"by hand, sglang", with(SGLang, OffloadNone, "--disaggregation-mode=prefill",
			"--disaggregation-bootstrap-port", "9003"), "prefill", "sglang :9003"},
		{"by hand, sglang in no mode", with(SGLang, OffloadNone, "--disaggregation-mode=null"), "both", " "},
		{"keeps blocks in the cache, and hands them over", with(VLLM, OffloadKVCached), "prefill", "kvcached "},
		{"the same, with a stated connector", func(c *Config) {
			with(VLLM, OffloadKVCached)(c)
			c.Connector = "kvcached"
		}, "both", "kvcached "},
		{"NIXL beside the cache", with(VLLM, OffloadNIXLKVCached), "decode", "nixl "},
		{"by hand, the cache", with(VLLM, OffloadNone, `--kv-transfer-config={"kv_connector":"KVCachedConnector"}`),
			"decode", "kvcached "},
		{"attached vllm", attached(VLLM, "", ""), "prefill", "nixl "},
		{"attached vllm, both", attached(VLLM, "", ""), "both", " "},
		{"attached vllm with mooncake", attached(VLLM, "mooncake", ":9004"), "prefill", "mooncake :9004"},
		{"attached sglang", attached(SGLang, "", ""), "prefill", "sglang :8998"},
		{"attached TensorRT-LLM", attached(OpenAICompat, "trtllm-generation-first", ""), "decode", "trtllm-generation-first "},
		{"attached llama.cpp", attached(LlamaCPP, "", ""), "both", " "},
	} {
		config := valid(c.change)
		if err := config.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		config.ValidateRole(c.role, func(key, format string, args ...any) {
			t.Errorf("%s: %s: %s", c.name, key, fmt.Sprintf(format, args...))
		})
		if connector, bootstrap := config.Handover(c.role); connector+" "+bootstrap != c.want {
			t.Errorf("%s: %q %q, not %q", c.name, connector, bootstrap, c.want)
		}
	}
}

// TestCommandNamesTheBootstrapPort: the engine gets the port that the agent announces.
func TestCommandNamesTheBootstrapPort(t *testing.T) {
	c := valid(func(c *Config) { with(SGLang, OffloadNIXL)(c); c.Bootstrap, c.Host = "p.example:9001", "0.0.0.0" })
	argv, _ := c.Command(Launch{Port: 9, Role: "prefill"})
	if line := strings.Join(argv, " "); !strings.HasSuffix(line, "--disaggregation-bootstrap-port 9001") ||
		!strings.Contains(line, "--host 0.0.0.0 ") || c.dialHost() != "127.0.0.1" ||
		c.BootstrapPort("prefill") != 9001 {
		t.Error(line, c.dialHost(), c.BootstrapPort("prefill"))
	}
	argv, _ = c.Command(Launch{Port: 9, Role: "decode"})
	if argv[len(argv)-1] != OffloadNIXL || c.BootstrapPort("decode") != 0 {
		t.Error(argv)
	}
	c = valid(func(c *Config) { with(VLLM, OffloadMooncake)(c); c.Bootstrap = ":9001" })
	_, env := c.Command(Launch{Port: 9, Role: "prefill"})
	_, decodes := c.Command(Launch{Port: 9, Role: "decode"})
	if strings.Join(env, " ") != "VLLM_MOONCAKE_BOOTSTRAP_PORT=9001" || len(decodes) != 0 {
		t.Error(env, decodes)
	}
	for host, want := range map[string]string{"10.0.0.1": "10.0.0.1", "::": "::1", "": "127.0.0.1"} {
		if got := (&Config{Host: host}).dialHost(); got != want {
			t.Errorf("%s is asked at %s", host, got)
		}
	}
}

func TestRoleProblems(t *testing.T) {
	const consumer = `--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_consumer"}`
	for _, c := range []struct {
		change func(*Config)
		role   string
		want   string
	}{
		{with(LlamaCPP, OffloadNone), "prefill", "role: prefill: a llama_cpp cannot hand KV blocks to another engine, or take " +
			"them; possible: both"},
		{attached(LlamaCPP, "", ""), "decode", "role: decode: a llama_cpp cannot"},
		{with(VLLM, OffloadNone), "prefill", "kv_offload: none cannot hand KV blocks to another engine, or take them, as role " +
			"prefill needs; possible: nixl, mooncake, nixl+lmcache, nixl+kvbm, kvcached, nixl+kvcached, nixl+kvcached-s3, or --kv-transfer-config in args"},
		{with(VLLM, OffloadLMCache), "decode", "kv_offload: lmcache cannot"},
		{with(SGLang, OffloadHiCache), "prefill", "possible: nixl, mooncake, or --disaggregation-mode in args"},
		{attached(OpenAICompat, "", ""), "prefill", "connector: empty, and the node's role is prefill"},
		{with(OpenAICompat, OffloadNone), "prefill", "connector: empty, and the node's role is prefill"},
		{with(VLLM, OffloadNIXLKVBM), "both", "kv_offload: nixl+kvbm: KVBM beside NIXL only hands blocks over"},
		{with(SGLang, OffloadNIXL), "both", "kv_offload: nixl: an SGLang hands blocks over"},
		{with(SGLang, OffloadNone, "--disaggregation-mode=decode"), "both",
			"args: --disaggregation-mode is decode, and the node's role is both"},
		{with(SGLang, OffloadNone, "--disaggregation-mode=decode"), "prefill",
			"args: --disaggregation-mode is decode"},
		{with(VLLM, OffloadNone, consumer), "prefill", "args: --kv-transfer-config has kv_role kv_consumer"},
		{attached(VLLM, "", ":8998"), "prefill", "bootstrap: only engines that prefill with the connector sglang or mooncake"},
		{attached(SGLang, "", ":8998"), "decode", "bootstrap: only"},
	} {
		var all []string
		valid(c.change).ValidateRole(c.role, func(key, format string, args ...any) {
			all = append(all, key+": "+fmt.Sprintf(format, args...))
		})
		if len(all) != 1 || !strings.HasPrefix(all[0], c.want) && !strings.Contains(all[0], c.want) {
			t.Errorf("%q, not %q", all, c.want)
		}
	}
	for want, change := range map[string]func(*Config){
		`engine.connector: sglang cannot use "nixl"; possible: sglang`: attached(SGLang, "nixl", ""),
		"engine.connector: llama_cpp cannot hand KV blocks":            attached(LlamaCPP, "nixl", ""),
		`engine.connector: "warp" is no connector`:                     attached(VLLM, "warp", ""),
		`engine.connector: "mooncake", but engine.kv_offload and args`: func(c *Config) {
			with(VLLM, OffloadNIXL)(c)
			c.Connector = "mooncake"
		},
		`engine.bootstrap: "8998" is neither host:port nor :port`:    attached(SGLang, "", "8998"),
		`engine.host: "localhost" is no IP address`:                  func(c *Config) { c.Host = "localhost" },
		"engine.args: --disaggregation-mode is set by":               with(SGLang, OffloadNIXL, "--disaggregation_mode=prefill"),
		"engine.args: --kv-transfer-config is set by":                with(VLLM, OffloadMooncake, "--kv_transfer_config", "{}"),
		"engine.args: --host is the agent's to set; use engine.host": with(VLLM, OffloadNone, "--host=::"),
	} {
		if err := valid(change).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}

func TestHandoverHidden(t *testing.T) {
	nixl := with(VLLM, OffloadNone, `--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_producer"}`)
	for _, c := range []struct {
		name      string
		change    func(*Config)
		key, says string
	}{
		{"sglang", with(SGLang, OffloadNIXL), "host", "127.0.0.1 is where the bootstrap server"},
		{"sglang on all addresses", func(c *Config) { with(SGLang, OffloadNIXL)(c); c.Host = "0.0.0.0" }, "", ""},
		{"mooncake", with(VLLM, OffloadMooncake), "", ""},
		{"nixl", with(VLLM, OffloadNIXL), "", ""},
		{"nixl on loopback", func(c *Config) { with(VLLM, OffloadNIXL)(c); c.Offload.NIXLHost = "localhost" },
			"offload.nixl_host", "loopback alone"},
		{"nixl by hand", nixl, "env", "no VLLM_NIXL_SIDE_CHANNEL_HOST"},
		{"nixl by hand, with a host", func(c *Config) {
			nixl(c)
			c.Env = []string{"VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1"}
		}, "", ""},
		{"attached", attached(VLLM, "", ""), "url", "VLLM_NIXL_SIDE_CHANNEL_HOST is not localhost"},
		{"attached sglang", attached(SGLang, "", ""), "url", "not loopback alone"},
		{"attached elsewhere", func(c *Config) { attached(SGLang, "", "")(c); c.URL = "http://10.0.0.1:8000" }, "", ""},
	} {
		config := valid(c.change)
		connector, _ := config.Handover("prefill")
		key, why := config.HandoverHidden(connector)
		if key != c.key || !strings.Contains(why, c.says) || connector == "" {
			t.Errorf("%s: %s: %s", c.name, key, why)
		}
	}
}
