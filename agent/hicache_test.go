package agent

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/hicache"
)

// withSGLang is an agent's configuration whose engine is an SGLang with KV events.
func withSGLang(change func(c *Config)) *Config {
	return valid(func(c *Config) {
		c.Engine.Kind, c.Engine.Model, c.Agent.DType = "sglang", "org/m", "bfloat16"
		c.Events.Endpoint, c.Events.Report, c.Events.MaxBlocks = "tcp://127.0.0.1:5557", "/run/kv.sock", 1
		change(c)
	})
}

func inPages(c *Config) { c.Events.HiCache.Bucket = "pages" }

// TestHiCacheSettings checks what the agent tells a cache daemon of an SGLang's HiCache.
func TestHiCacheSettings(t *testing.T) {
	want := alias.Source{Scheme: alias.HiCache, Keys: "key1;s3.pages;", Model: "org-m", World: 1, Halves: true,
		First: hicache.Rest("bfloat16"), Served: "-", Revision: "-"}
	for what, change := range map[string]func(c *Config, want *alias.Source){
		"attached": func(c *Config, _ *alias.Source) { inPages(c) },
		"model": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Events.HiCache.Model, want.Model = "a/b/c", "a-b-c"
		},
		"ranks": func(c *Config, want *alias.Source) { inPages(c); c.Agent.TP, want.World = 4, 4 },
		"workers": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Agent.TP, c.Events.HiCache.Workers, want.World = 8, 2, 2
		},
		"mla": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Agent.TP, c.Events.HiCache.MLA, want.Scheme = 8, true, alias.HiCacheMLA
		},
		"layout": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Events.HiCache.Layout, want.Halves = "layer_first", false
		},
		"revision": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Events.HiCache.Revision, want.Revision = "r", "r"
		},
		"dtype": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Agent.DType, want.First = "float16", hicache.Rest("float16")
		},
		"tenant": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Events.HiCache.Tenant, want.Keys = "a", "key1;s3.pages;a"
		},
		"started": func(c *Config, want *alias.Source) {
			c.Engine.URL, c.Engine.KVOffload, c.Engine.Offload.HiCacheStorage = "", "hicache", "kvcached"
			c.Engine.Args = []string{"--served-model-name", "chat/m"}
			want.Keys, want.Model = "key1;s3.kvcache;", "chat-m"
		},
	} {
		want := want
		c := withSGLang(func(c *Config) { change(c, &want) })
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got, why, err := c.units()[0].chunks("gpu1", nil); err != nil || got == nil || got.Source != want {
			t.Errorf("%s: %+v %q %v, want %+v", what, got, why, err, want)
		}
	}
	if c, why, err := withSGLang(func(*Config) {}).units()[0].chunks("gpu1", nil); c != nil || why != "" || err != nil {
		t.Errorf("without a bucket: %+v %q %v", c, why, err)
	}
}

// TestHiCacheValidation refuses settings that cannot be right.
func TestHiCacheValidation(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		"kv_events.hicache.bucket: only a cgn-kvcached": func(c *Config) {
			c.Events.Report, c.Events.Listen = "", "unix:///x"
		},
		"kv_events.hicache.bucket: is for": func(c *Config) { c.Events.Endpoint, c.Events.Report = "", "" },
		"do not name the ranks of --pp-size": func(c *Config) {
			c.Engine.URL, c.Engine.Args = "", []string{"--pp-size", "2"}
		},
		"kv_events.hicache.workers: -1 ranks":      func(c *Config) { c.Events.HiCache.Workers = -1 },
		"kv_events.hicache: alias":                 func(c *Config) { c.Events.HiCache.Workers = 1025 },
		"an engine has one cache whose keys count": func(c *Config) { c.Events.LMCache.RemoteURL = "redis://h:1" },
	} {
		c := withSGLang(func(c *Config) {
			inPages(c)
			change(c)
		})
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}
