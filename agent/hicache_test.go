package agent

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/cognitora/dataplane/kv/alias"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/sim/engine"
)

// withSGLang is an agent's configuration whose engine is an SGLang with KV events.
func withSGLang(change func(c *Config)) *Config {
	return valid(func(c *Config) {
		c.Engine.Kind, c.Engine.Model, c.Agent.DType = "sglang", "org/m", "bfloat16"
		c.Events.Endpoint, c.Events.Report, c.Events.MaxBlocks = "tcp://127.0.0.1:5557", "/run/kv.sock", 1
		change(c)
	})
}

// keepsPages has the agent start the SGLang with pages in the bucket kvcache.
func keepsPages(c *Config) {
	c.Engine.URL, c.Engine.KVOffload, c.Engine.Offload.HiCacheStorage = "", "hicache", "kvcached"
}

func inPages(c *Config) { c.Events.HiCache.Bucket = "pages" }

// TestHiCacheSettings checks what the agent tells a cache daemon of an SGLang's HiCache.
func TestHiCacheSettings(t *testing.T) {
	want := alias.Source{Scheme: alias.HiCache, Keys: "key1;s3.pages;", Model: "org-m", World: 1, Halves: true,
		Variant: "bfloat16", Served: "-", Revision: "-"}
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
			c.Agent.DType, want.Variant = "float16", "float16"
		},
		"tenant": func(c *Config, want *alias.Source) {
			inPages(c)
			c.Events.HiCache.Tenant, want.Keys = "a", "key1;s3.pages;a"
		},
		"started": func(c *Config, want *alias.Source) {
			keepsPages(c)
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
		"kv_events.lmcache.remote_url: an engine has one cache": func(c *Config) {
			keepsPages(c)
			c.Events.HiCache.Bucket, c.Events.LMCache.RemoteURL = "", "redis://127.0.0.1:1"
		},
		"kv_events.hicache.bucket: \"pages\", and the agent starts the engine with pages in \"kvcache\"": keepsPages,
		"kv_events.hicache.layout: page_head, and the engine starts with": func(c *Config) {
			keepsPages(c)
			c.Events.HiCache.Bucket, c.Events.HiCache.Layout = "", "page_head"
		},
		"and the engine starts with --hicache-mem-layout layer_first; set this to layer_first": func(c *Config) {
			c.Engine.URL, c.Engine.Args = "", []string{"--hicache-mem-layout", "layer_first"}
		},
		"kv_events.hicache.bucket: is for an SGLang, and engine.kind is vllm": func(c *Config) {
			c.Engine.Kind = "vllm"
		},
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

// TestHiCacheCountsInRouting publishes the KV events that SGLang's own code has made of a prompt,
// and stores its pages as SGLang does. The daemon then tells routers of the prompt's blocks, once
// for the engine and once for its own RAM.
func TestHiCacheCountsInRouting(t *testing.T) {
	var golden struct {
		Prompts []struct {
			Hashes []string
			Batch  []byte
		}
	}
	text, err := os.ReadFile("../kv/hicache/testdata/pages.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil || len(golden.Prompts) != 7 {
		t.Fatal(err)
	}
	daemon, client := startCache(t)
	sim, err := engine.New(engine.Config{Models: []string{"tiny"}, Speed: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	publisher := zmq4.NewPub(t.Context())
	t.Cleanup(func() { _ = publisher.Close() })
	if err := publisher.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, sim.URL())
	c.Engine.Kind, c.Agent.DType = "sglang", "bfloat16"
	c.Events.Endpoint, c.Events.Report = "tcp://"+publisher.Addr().String(), daemon.At("grpc-sock")
	c.Events.HiCache.Bucket, c.Events.HiCache.Model = "pages", "org/m"
	a := startAgent(t, c)
	eventually(t, "the agent is ready", a.ready)
	values := func() map[string]int64 {
		r, err := client.Stats(t.Context(), &pb.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Values
	}
	const plain, salted = 0, 4
	putPages(t, daemon.At("s3"), append(golden.Prompts[plain].Hashes, golden.Prompts[salted].Hashes...))
	if v := values(); v["chunks_untold"] != 8 || v["residency_own_blocks"] != 0 {
		t.Errorf("%d pages are not told, %d blocks of them count", v["chunks_untold"], v["residency_own_blocks"])
	}
	number := uint64(0)
	publish := func(of int) {
		frames := [][]byte{nil, binary.BigEndian.AppendUint64(nil, number), golden.Prompts[of].Batch}
		if err := publisher.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
			t.Fatal(err)
		}
		number++
	}
	eventually(t, "the agent follows the events", func() bool {
		if values()["residency_blocks"] == 0 {
			publish(salted)
			return false
		}
		return true
	})
	publish(plain)
	eventually(t, "the pages count", func() bool { return values()["residency_own_blocks"] == 16 })
	if v := values(); v["chunks_counted"] != 4 || v["chunks_untold"] != 4 {
		t.Errorf("%v", v)
	}
}

// putPages stores pages over S3 as HiCacheNixl does.
func putPages(t *testing.T, at string, hashes []string) {
	t.Helper()
	for _, hash := range hashes {
		for _, half := range []string{"_k", "_v"} {
			url := "http://" + at + "/pages/" + hash + "_org-m_0_1" + half
			r, err := http.NewRequest(http.MethodPut, url, strings.NewReader("page"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(r)
			if err != nil || answer.StatusCode != 200 {
				t.Fatal(answer, err)
			}
			answer.Body.Close()
		}
	}
}
