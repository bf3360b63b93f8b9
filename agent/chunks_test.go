package agent

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// TestTierSettings checks what the agent tells a cache daemon of vLLM's own tiers.
func TestTierSettings(t *testing.T) {
	c := valid(func(c *Config) {
		c.Engine.URL, c.Engine.Kind, c.Engine.KVOffload, c.Engine.Model = "", "vllm", "nixl+kvcached-s3", "org/m"
		c.Engine.Offload.CPUBytes, c.Engine.Offload.NIXLPort, c.Engine.Offload.Revision = 1<<30, 5600, "r"
		c.Engine.Offload.S3Endpoint, c.Engine.Offload.S3Bucket = "127.0.0.1:9000", "blocks"
		c.Events = EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock", MaxBlocks: 1}
	})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := alias.Source{Keys: "key1;s3.blocks;", Engine: vllmtier.Client("gpu1-9081"),
		Scheme: alias.VLLMTier, World: 1, Served: "-", Revision: "r"}
	if got, _, err := c.units()[0].chunks("gpu1-9081", nil); err != nil || got == nil || got.Source != want {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	c.Engine.KVOffload = "nixl"
	if got, why, err := c.units()[0].chunks("gpu1-9081", nil); err != nil || why != "" || got != nil {
		t.Errorf("another connector: %+v %q %v", got, why, err)
	}
}

// TestOneCache refuses a second cache whose keys would count, and names both settings.
func TestOneCache(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		`kv_events.lmcache.remote_url: an engine has one cache whose keys count, and engine.kv_offload = "kvcached-s3"`: func(c *Config) {
			c.Engine.KVOffload = "kvcached-s3"
		},
		`kv_events.lmcache.remote_url: an engine has one cache whose keys count, and engine.kv_offload = "kvcached" `: func(c *Config) {
			c.Engine.KVOffload = "kvcached"
		},
		`kv_events.lmcache.remote_url: an engine has one cache whose keys count, and engine.kv_offload = "hicache"`: func(c *Config) {
			keepsPages(c)
			c.Engine.Kind = "sglang"
		},
		`kv_events.hicache.bucket: an engine has one cache whose keys count, and engine.kv_offload = "kvcached-s3"`: func(c *Config) {
			c.Engine.KVOffload, c.Events.LMCache.RemoteURL, c.Events.HiCache.Bucket = "kvcached-s3", "", "pages"
		},
		`kv_events.hicache.bucket: an engine has one cache whose keys count, and engine.kv_offload = "lmcache"`: func(c *Config) {
			c.Engine.KVOffload, c.Events.LMCache.RemoteURL, c.Events.HiCache.Bucket = "lmcache", "", "pages"
			c.Agent.StateDir = "/tmp"
		},
		`kv_events.hicache.bucket: an engine has one cache whose keys count, and kv_events.lmcache.remote_url = "redis:`: func(c *Config) {
			c.Events.HiCache.Bucket = "pages"
		},
		"": func(c *Config) { c.Engine.KVOffload = "nixl" },
	} {
		c := valid(func(c *Config) {
			c.Engine.URL, c.Engine.Kind, c.Engine.Model, c.Engine.Offload.NIXLPort = "", "vllm", "org/m", 5600
			c.Engine.Offload.CPUBytes = 1 << 30
			c.Events = EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock", MaxBlocks: 1,
				LMCache: LMCacheConfig{RemoteURL: "redis://127.0.0.1:6380", DType: "float", ChunkSize: 256}}
			change(c)
		})
		switch err := c.Validate(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestReadsNothing checks that the agent says that an engine without a cache reads nothing, and is
// silent about an engine that may have one.
func TestReadsNothing(t *testing.T) {
	for what, c := range map[string]struct {
		change func(c *Config)
		want   bool
	}{
		"started":  {func(c *Config) {}, true},
		"attached": {func(c *Config) { c.Engine.URL = "http://127.0.0.1:1" }, false},
		"started with LMCache by hand": {func(c *Config) {
			c.Events.LMCache.RemoteURL, c.Events.LMCache.DType = "redis://127.0.0.1:6380", "half"
		}, false},
		"started with HiCache by hand": {func(c *Config) {
			c.Engine.Kind, c.Events.HiCache.Bucket = "sglang", "pages"
		}, false},
		"started, told by the agent itself": {func(c *Config) {
			c.Events.Report, c.Events.Listen = "", "unix://"+t.TempDir()+"/s"
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			config := testConfig(t, "")
			config.Agent.NodeID, config.Agent.DType = "gpu1", "bfloat16"
			config.Engine.Model, config.Engine.Binary = "m", "false" // a program that ends at once
			config.Events.Endpoint, config.Events.Report = "tcp://127.0.0.1:1", t.TempDir()+"/kv.sock"
			c.change(&config)
			if config.Engine.URL != "" {
				config.Engine.Binary = ""
			}
			a := startAgent(t, config)
			if got := a.nodes[0].events.options.ReadsNothing; got != c.want {
				t.Errorf("the agent says that the engine reads nothing: %v", got)
			}
		})
	}
}
