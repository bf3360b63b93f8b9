package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kvcached"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestLMCacheSettings checks what the agent tells a cache daemon of an engine's LMCache.
func TestLMCacheSettings(t *testing.T) {
	unitOf := func(change func(c *Config)) *unit {
		c := valid(func(c *Config) {
			c.Events = EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock", MaxBlocks: 1,
				LMCache: LMCacheConfig{RemoteURL: "redis://127.0.0.1:6380", Model: "/models/m", DType: "float",
					Seed:      "0",
					ChunkSize: 256}}
			change(c)
		})
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		return c.units()[0]
	}
	want := alias.Source{Scheme: alias.LMCache, Keys: "key1;resp.0;", Model: "/models/m", DType: "float", World: 1,
		Halves: true, First: lmcache.First("0"), Served: "-", Revision: "-"}
	for what, change := range map[string]func(c *Config, want *alias.Source){
		"attached": func(*Config, *alias.Source) {},
		"resp": func(c *Config, want *alias.Source) {
			c.Events.LMCache.RemoteURL, want.Keys, want.Halves = "resp://user:x@127.0.0.1:6380", "key1;resp.0;a", false
			c.Events.LMCache.Tenant = "a"
		},
		"database": func(c *Config, want *alias.Source) {
			c.Events.LMCache.RemoteURL, want.Keys = "redis://127.0.0.1:6380/7", "key1;resp.7;"
		},
		"s3": func(c *Config, want *alias.Source) {
			c.Events.LMCache.RemoteURL, want.Keys, want.Halves = "s3://chunks.localhost:9000", "key1;s3.chunks;", false
		},
		"ranks": func(c *Config, want *alias.Source) { c.Agent.TP, want.World = 4, 4 },
		"mla":   func(c *Config, want *alias.Source) { c.Agent.TP, c.Events.LMCache.Workers = 4, 1 },
		"layers": func(c *Config, want *alias.Source) {
			c.Events.LMCache.Layers, want.Layers, c.Events.LMCache.Revision, want.Revision = 32, 32, "r", "r"
		},
		"revision": func(c *Config, want *alias.Source) { c.Engine.Offload.Revision, want.Revision = "r", "r" },
		"its own revision": func(c *Config, want *alias.Source) {
			c.Engine.Offload.Revision, c.Events.LMCache.Revision, want.Revision = "r", "s", "s"
		},
		"dtype": func(c *Config, want *alias.Source) {
			c.Events.LMCache.DType, c.Agent.DType, want.DType = "", "float16", "half"
		},
		"seed": func(c *Config, want *alias.Source) { c.Events.LMCache.Seed, want.First = "1", lmcache.First("1") },
		"started": func(c *Config, want *alias.Source) {
			c.Engine.URL, c.Engine.Kind, c.Engine.KVOffload, c.Engine.Model = "", "vllm", "nixl+lmcache", "org/m"
			c.Engine.Offload.RemoteURL, c.Engine.Offload.NIXLPort, c.Agent.StateDir = "redis://127.0.0.1:6380/2",
				5600, "/tmp"
			c.Events.LMCache.RemoteURL, c.Events.LMCache.Model, want.Model, want.Keys = "", "", "org/m", "key1;resp.2;"
		},
	} {
		want := want
		u := unitOf(func(c *Config) { change(c, &want) })
		if c, why, err := u.lmcache(); err != nil || c == nil || c.Source != want || c.Tokens != 256 {
			t.Errorf("%s: %+v %q %v, want %+v", what, c, why, err, want)
		}
	}
	for what, change := range map[string]func(c *Config){
		"none": func(c *Config) { c.Events.LMCache = LMCacheConfig{} },
		"report": func(c *Config) {
			c.Events.LMCache.RemoteURL, c.Events.Report, c.Events.Listen = "", "", "unix:///x"
		},
	} {
		if c, _, err := unitOf(change).lmcache(); c != nil || err != nil {
			t.Errorf("%s: %+v %v", what, c, err)
		}
	}
}

func TestLMCacheIsChecked(t *testing.T) {
	for want, change := range map[string]func(c *EventsConfig){
		"kv_events.lmcache.remote_url: is for":     func(c *EventsConfig) { c.Endpoint, c.Report = "", "" },
		"kv_events.lmcache.remote_url: \"lm://x\"": func(c *EventsConfig) { c.LMCache.RemoteURL = "lm://x" },
		"kv_events.lmcache.remote_url: only a cgn-kvcached": func(c *EventsConfig) {
			c.Report,
				c.Listen = "", "unix:///x"
		},
		"set kv_events.lmcache.dtype":               func(c *EventsConfig) { c.LMCache.DType = "" },
		"unusable source of chunks: dtype \"bf16\"": func(c *EventsConfig) { c.LMCache.DType = "bf16" },
		"model in the keys has 0 bytes":             func(c *EventsConfig) { c.LMCache.Model = "" },
		"kv_events.lmcache.chunk_size: 1024":        func(c *EventsConfig) { c.LMCache.ChunkSize = 1024 },
		"kv_events.lmcache.workers: -1":             func(c *EventsConfig) { c.LMCache.Workers = -1 },
	} {
		c := valid(func(c *Config) {
			c.Events = EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock", MaxBlocks: 1,
				LMCache: LMCacheConfig{RemoteURL: "redis://127.0.0.1:6380", Model: "/models/m", DType: "float",
					ChunkSize: 256}}
			change(&c.Events)
		})
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestLMCacheCountsInRouting runs an engine, its agent and the cache daemon, and stores what a real
// LMCache stored for the engine's prompt. The daemon then tells routers of the prompt's blocks,
// once for the engine and once for its own RAM. Requests for an adapter and with a salt add
// nothing.
func TestLMCacheCountsInRouting(t *testing.T) {
	var golden struct {
		Prompt []uint32
		Keys   []string `json:"keys_seen"`
	}
	text, err := os.ReadFile("../kv/lmcache/testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil || len(golden.Keys) != 4 {
		t.Fatal(err)
	}
	daemon, client := startCache(t)
	sim, err := engine.New(engine.Config{Models: []string{"tiny"}, Speed: 1000, BlockTokens: 32,
		Adapters: []engine.Adapter{{Name: "sql"}},
		KVEvents: &engine.KVEvents{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	c := testConfig(t, sim.URL())
	c.Events.Endpoint, c.Events.Replay = sim.KVEndpoints()
	c.Events.Report = daemon.At("grpc-sock")
	c.Events.LMCache.RemoteURL = "redis://" + daemon.At("resp")
	c.Events.LMCache.Model, c.Events.LMCache.DType = "MODEL", "float"
	a := startAgent(t, c)
	eventually(t, "the agent is ready", a.ready)
	for _, key := range golden.Keys {
		set(t, daemon.At("resp"), key)
	}
	values := func() map[string]int64 {
		r, err := client.Stats(t.Context(), &pb.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Values
	}
	ask := func(model, more string) {
		ids, _ := json.Marshal(golden.Prompt)
		body := fmt.Sprintf(`{"model":%q,"max_tokens":1,"prompt":%s%s}`, model, ids, more)
		r, err := http.Post(a.url()+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		r.Body.Close()
	}
	blocks := int64(len(golden.Prompt) / 32 * 2)
	ask("sql", "")
	ask("tiny", `,"cache_salt":"a"`)
	eventually(t, "the engine's blocks are reported", func() bool { return values()["residency_blocks"] == 2*blocks })
	if v := values(); v["chunks_untold"] != 2 || v["residency_own_blocks"] != 0 {
		t.Errorf("%d chunks are not told, %d blocks of them count", v["chunks_untold"], v["residency_own_blocks"])
	}
	ask("tiny", "")
	eventually(t, "LMCache's chunks count, and the engine's blocks", func() bool { // either is told first
		v := values()
		return v["residency_own_blocks"] == 32 && v["residency_blocks"] == 3*blocks+32
	})
	if v := values(); v["chunks_counted"] != 2 {
		t.Errorf("%v", v)
	}
	eventually(t, "the agent counts what it told", func() bool {
		_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
		_, told, _ := strings.Cut(page, "\ncgn_agent_chunks_told_total{node=\""+a.NodeID()+"\"} ")
		told, _, _ = strings.Cut(told, "\n")
		n, err := strconv.Atoi(told)
		return err == nil && n >= 2
	})
}

// startCache runs a cache daemon until the test ends.
func startCache(t *testing.T) (*kvcached.Daemon, pb.KvClient) {
	t.Helper()
	var c kvcached.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.Daemon.Data, c.Daemon.Sock, c.Daemon.RAM, c.Daemon.SSD = dir, filepath.Join(dir, "kv.sock"), 32<<20, 0
	c.Daemon.Admin, c.RESP.Listen, c.S3.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	d, err := kvcached.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, context.Background()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+d.At("grpc-sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return d, pb.NewKvClient(conn)
}

// set stores a small value over RESP.
func set(t *testing.T, at, key string) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "SET %s value\r\n", key)
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+OK\r\n" {
		t.Fatal(line, err)
	}
}
