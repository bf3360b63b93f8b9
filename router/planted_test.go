package router_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/ctl/ctltest"
	ctlkv "github.com/cognitora/dataplane/ctl/kv"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// planted is a host with a cache daemon, and a router with one node on the host, cold, whose engine
// has nothing cached itself and serves the adapters sql and chat, too.
type planted struct {
	t      *testing.T
	socket string
	cache  *client.Client
	site   *site
}

func plant(t *testing.T, model string) *planted {
	p := &planted{t: t}
	p.socket, p.cache = cacheDaemon(t)
	engines := simulate(t, 1, func(c *engine.Config) {
		c.Models, c.Adapters = []string{model}, []engine.Adapter{{Name: "sql"}, {Name: "chat"}}
	})
	p.site = serve(t, nil, scored, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=cold,kv=unix://" + p.socket}
	})
	eventually(t, "the node is eligible", func() bool { return p.site.eligible() == 1 })
	return p
}

// counts waits until the router counts this many blocks of a prompt.
func (p *planted) counts(what, body string, blocks int) {
	p.t.Helper()
	got := -1
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s: %d blocks count, want %d", what, got, blocks)
		}
	}()
	eventually(p.t, what, func() bool {
		e := p.site.explainAs("completions", body)
		if len(e.Candidates) == 1 {
			got = e.Candidates[0].Disk
		}
		return got == blocks
	})
}

// stats returns what kv stats prints, in one line, and its values.
func (p *planted) stats() (text string, values map[string]int64) {
	p.t.Helper()
	text, err := ctltest.Run(p.t, ctlkv.Command, nil, "kv", "stats", "--sock", p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	page, err := ctltest.Run(p.t, ctlkv.Command, nil, "kv", "stats", "--sock", p.socket, "-o", "json")
	var all struct{ Values map[string]int64 }
	if err == nil {
		err = json.Unmarshal([]byte(page), &all)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Join(strings.Fields(text), " "), all.Values
}

// first stores the prompt's first block alone, in a namespace of its own. What was stored before it
// is then known to the router, too, once that block counts.
func (p *planted) first(n block.Namespace, digest block.Digest) {
	p.t.Helper()
	putChain(p.t, p.cache, n, []block.Digest{digest})
}

// bodyOf is a request for a prompt of token ids.
func bodyOf(model string, tokens []uint32, more map[string]any) string {
	body := map[string]any{"model": model, "prompt": tokens, "max_tokens": 1}
	for k, v := range more {
		body[k] = v
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// lmcacheFault is a fault in what the agent says of LMCache, in LMCache's keys or in the prompt.
type lmcacheFault struct {
	agent  func(c *agent.Config)
	key    func(key string) string
	model  string         // that the engine is asked for
	more   map[string]any // in the request to the engine
	second string         // revision of a second agent of the same engine; empty: there is none
	told   string         // value of kv stats that shows that the agent has told, or has seen
	value  int64
	says   string // what kv stats says
	blocks int    // that count
}

const (
	noneTold = "Chunks of LMCache, vLLM's tier and HiCache: 0 count in routing; not told 2, incomplete 0, disputed 0"
	idle     = "chunks_idle" // chunks that were told and of which nothing is stored
)

// TestPlantedFaultsOfLMCache plants faults between an engine with an unchanged LMCache, its agent,
// the cache daemon and the router. No block counts then, and kv stats says why.
func TestPlantedFaultsOfLMCache(t *testing.T) {
	t.Parallel()
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
	other := map[string]string{} // names as LMCache would have made them with PYTHONHASHSEED=1
	name, of := lmcache.First("0"), lmcache.First("1")
	for tokens := golden.Prompt; len(tokens) >= 256; tokens = tokens[256:] {
		name, of = lmcache.Next(name, tokens[:256]), lmcache.Next(of, tokens[:256])
		other[fmt.Sprintf("%x", uint64(name))] = fmt.Sprintf("%x", uint64(of))
	}
	another := func(key string) string {
		fields := strings.Split(key, "@")
		fields[3] = other[fields[3]]
		return strings.Join(fields, "@")
	}
	all := map[string]lmcacheFault{
		"none": {told: "chunks_counted", value: 2, blocks: 32,
			says: "Chunks of LMCache, vLLM's tier and HiCache: 2 count in routing; not told 0, incomplete 0, disputed 0"},
		"seed":            {agent: func(c *agent.Config) { c.Events.LMCache.Seed = "1" }, told: idle, value: 2},
		"seed of LMCache": {key: another, told: idle, value: 2},
		"chunk size":      {agent: func(c *agent.Config) { c.Events.LMCache.ChunkSize = 128 }, told: idle, value: 4},
		"data type":       {agent: func(c *agent.Config) { c.Events.LMCache.DType = "bfloat16" }, told: idle, value: 2},
		"data type of LMCache": {key: func(key string) string { return strings.Replace(key, "@float", "@half", 1) },
			told: idle, value: 2},
		"model":    {agent: func(c *agent.Config) { c.Events.LMCache.Model = "OTHER" }, told: idle, value: 2},
		"database": {agent: func(c *agent.Config) { c.Events.LMCache.RemoteURL += "/1" }, told: idle, value: 2},
		"ranks":    {agent: func(c *agent.Config) { c.Agent.TP = 2 }, told: idle, value: 2},
		"layers":   {agent: func(c *agent.Config) { c.Events.LMCache.Layers = 2 }, told: idle, value: 2},
		"a rank that stored nothing": {agent: func(c *agent.Config) { c.Agent.TP = 2 },
			key:  func(key string) string { return strings.Replace(key, "@1@0@", "@2@0@", 1) },
			told: "chunks_incomplete", value: 2,
			says: "Chunks of LMCache, vLLM's tier and HiCache: 0 count in routing; not told 0, incomplete 2, disputed 0"},
		"adapter": {model: "sql", told: "residency_blocks", value: 36},
		"salt":    {more: map[string]any{"cache_salt": "a"}, told: "residency_blocks", value: 36},
		"revision": {second: "2", told: "chunks_disputed", value: 2,
			says: "Chunks of LMCache, vLLM's tier and HiCache: 0 count in routing; not told 0, incomplete 0, disputed 2"},
	}
	for what, f := range all {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f.run(t, golden.Prompt, golden.Keys)
		})
	}
}

func (f *lmcacheFault) run(t *testing.T, prompt []uint32, keys []string) {
	p := plant(t, "tiny")
	for _, key := range keys {
		if f.key != nil {
			key = f.key(key)
		}
		setInCache(t, p.socket, key)
	}
	sims := simulate(t, 1, publishing, func(c *engine.Config) {
		c.Models, c.Adapters = []string{"tiny"}, []engine.Adapter{{Name: "sql"}}
	})
	for i, revision := range slices.Compact([]string{"", f.second}) {
		c, err := agentConfig(fmt.Sprint("warm-", i), sims[0].URL(), "")
		if err != nil {
			t.Fatal(err)
		}
		c.Etcd.Endpoints = nil
		c.Events.Endpoint, c.Events.Replay = sims[0].KVEndpoints()
		c.Events.Report, c.Events.LMCache.RemoteURL = p.socket, "redis://127.0.0.1:6380"
		c.Events.LMCache.Model, c.Events.LMCache.DType, c.Events.LMCache.Revision = "MODEL", "float", revision
		if f.agent != nil {
			f.agent(&c)
		}
		startAgent(t, c)
	}
	model := "tiny"
	if f.model != "" {
		model = f.model
	}
	r, err := http.Post(sims[0].URL()+"/v1/completions", "application/json",
		strings.NewReader(bodyOf(model, prompt, f.more)))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	_ = r.Body.Close()
	eventually(t, "the agent has told", func() bool {
		_, values := p.stats()
		return values[f.told] == f.value
	})
	blocks := max(f.blocks, 1)
	if f.blocks == 0 { // for an engine that says nothing two namespaces would count for nothing
		p.first(block.Namespace{Model: "tiny", Revision: "1", DType: "float32", Layout: "l", Tokens: 16, TP: 1, PP: 1},
			block.Next(block.Seed("tiny", "", ""), (*[block.Tokens]uint32)(prompt)))
	}
	p.counts("the prompt for the base model", bodyOf("tiny", prompt, nil), blocks)
	want := f.says
	if want == "" {
		want = noneTold
	}
	said, _ := p.stats()
	ctltest.Want(t, said, want)
}

// setInCache stores a small value over RESP.
func setInCache(t *testing.T, socket, key string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(filepath.Dir(socket), "resp.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "SET %s value\r\n", key)
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+OK\r\n" {
		t.Fatal(line, err)
	}
}

// TestEngineWithoutCache has the blocks of a prompt on the host of an engine of which nobody says
// what it reads. They count until the engine's agent says that the engine reads nothing.
func TestEngineWithoutCache(t *testing.T) {
	t.Parallel()
	p := plant(t, "sim")
	tokens, chain := promptOf(8)
	putChain(t, p.cache, block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
		PP: 1}, chain)
	body := bodyOf("sim", tokens, nil)
	p.counts("nothing is said", body, 8)
	daemon, err := events.NewDaemon(p.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Close() }()
	report := residency.Report{Engine: "cold", Epoch: 1, Number: 1, Fresh: true}
	say := func(reads []string) {
		t.Helper()
		report.Reads = reads
		if err := daemon.Report(&report); err != nil {
			t.Fatal(err)
		}
		report.Number, report.Fresh = report.Number+1, false
	}
	say([]string{})
	p.counts("the engine reads nothing", body, 0)
	said, _ := p.stats()
	ctltest.Want(t, said, "NODE CAN READ, BESIDES OTHER RANKS cold nothing")
	say(nil)
	p.counts("nothing is said again", body, 8)
}

// TestPromptsComputedWhole has the blocks of a prompt in the engine's memory and on its host. They
// count, but not for a request with which vLLM computes the whole prompt.
func TestPromptsComputedWhole(t *testing.T) {
	t.Parallel()
	p := plant(t, "sim")
	tokens, chain := promptOf(8)
	putChain(t, p.cache, block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
		PP: 1}, chain)
	body := bodyOf("sim", tokens, nil)
	p.counts("the prompt", body, 8)
	p.site.post("/v1/completions", bodyOf("sim", tokens[:4*block.Tokens], nil))
	for what, c := range map[string]struct {
		more         map[string]any
		device, disk int
	}{
		"as usual":      {nil, 4, 8},
		"null":          {map[string]any{"prompt_logprobs": nil, "echo": true}, 4, 8},
		"of the prompt": {map[string]any{"prompt_logprobs": 0}, 0, 0},
		"of the echo":   {map[string]any{"echo": true, "logprobs": 1}, 0, 0},
	} {
		e := p.site.explainAs("completions", bodyOf("sim", tokens, c.more))
		if len(e.Candidates) != 1 || e.Candidates[0].Matched != c.device || e.Candidates[0].Disk != c.disk ||
			e.Candidates[0].Total != 8 {
			t.Errorf("%s: %+v", what, e.Candidates)
		}
	}
}

// connectorFault is a fault in what a connector has stored.
type connectorFault struct {
	stored, reads block.Namespace // reads is what the engine of the router's node reads
	adapter, salt string          // of the stored blocks
	names         bool            // objects have the names of their blocks
	says          string          // what kv stats says
	blocks        int             // that count
}

// sentinel is the namespace of the block by which a test knows that the router knows all.
var sentinel = block.Namespace{Model: "sim", Revision: "0", DType: "none", Layout: "none", Tokens: 16, TP: 1, PP: 1,
	Tenant: "sentinel"}

// TestPlantedFaultsOfTheConnector plants a fault in what the connector of an engine has stored,
// against what the engine of the router's node can read. No block counts, and kv stats says why.
func TestPlantedFaultsOfTheConnector(t *testing.T) {
	t.Parallel()
	tokens, chain := promptOf(8)
	good := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "l", Tokens: 32, TP: 1, PP: 1}
	of := func(change func(n *block.Namespace)) block.Namespace {
		n := good
		change(&n)
		return n
	}
	const unread = "8 blocks do not count: no engine that has said what it reads can read them; the nearest differs in "
	odd := of(func(n *block.Namespace) { n.Tokens = 40 })
	two := of(func(n *block.Namespace) { n.TP = 2 })
	tuned := of(func(n *block.Namespace) { n.Revision += "+files" })
	for what, c := range map[string]connectorFault{
		"none": {stored: good, reads: good, names: true, blocks: 8, says: "8 cold " + good.String()},
		"data type": {stored: of(func(n *block.Namespace) { n.DType = "fp8" }), reads: good, names: true,
			says: unread + "data type"},
		"adapter": {stored: of(func(n *block.Namespace) { n.Revision += "+sql" }), reads: good, names: true,
			says: unread + "revision"},
		"adapter's own": {stored: tuned, reads: tuned, adapter: "sql", names: true, blocks: 8,
			says: "8 cold " + tuned.String()},
		"adapter's other files": {stored: tuned, reads: of(func(n *block.Namespace) { n.Revision += "+other" }),
			adapter: "sql", names: true, says: unread + "revision"},
		"adapter's own with a salt": {stored: tuned, reads: tuned, adapter: "sql", salt: "tenant", names: true,
			says: "8 cold " + tuned.String()},
		"salt": {stored: good, reads: good, salt: "tenant", names: true, says: "8 cold " + good.String()},
		"revision": {stored: of(func(n *block.Namespace) { n.Revision = "2" }), reads: good, names: true,
			says: unread + "revision"},
		"version": {stored: of(func(n *block.Namespace) { n.Layout = "other" }), reads: good, names: true,
			says: unread + "layout"},
		"block size": {stored: of(func(n *block.Namespace) { n.Tokens = 64 }), reads: good, names: true,
			says: unread + "tokens of a block"},
		"odd block size": {stored: odd, reads: odd,
			says: "objects in RAM do not count: TOKENS = 40 is no multiple of 16"},
		"names": {stored: good, reads: good, says: "4 objects in RAM do not count: their writer gave no names"},
		"rank": {stored: two, reads: two, names: true,
			says: "8 blocks do not count: not all 2 ranks have them"},
		"tenant": {stored: of(func(n *block.Namespace) { n.Tenant = "t" }), reads: good, names: true,
			says: unread + "tenant"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c.run(t, tokens, chain)
		})
	}
}

func (c *connectorFault) run(t *testing.T, tokens []uint32, chain []block.Digest) {
	p := plant(t, "sim")
	model := cmp.Or(c.adapter, "sim")
	digests, digest := []block.Digest(nil), block.Seed(model, "", c.salt)
	for i := range chain {
		digest = block.Next(digest, (*[block.Tokens]uint32)(tokens[i*block.Tokens:]))
		digests = append(digests, digest)
	}
	reads := []block.Namespace{c.reads, sentinel}
	if c.adapter != "" {
		base := c.reads
		base.Revision, _, _ = strings.Cut(base.Revision, "+")
		reads = append(reads, base)
	}
	readerOf(t, p.socket, "cold", reads...)
	per := max(int(c.stored.Tokens)/block.Tokens, 1)
	for i := per - 1; i < len(digests); i += per {
		item := client.Item{Addr: block.Addr{Digest: digests[i], Model: c.stored.ID(), Layer: block.LayerAll},
			Namespace: c.stored.String()}
		if i >= per {
			item.Parent = digests[i-per]
		}
		for at := i - per + 1; c.names && at < i; at++ {
			item.Names = append(item.Names, digests[at][:block.NameBytes]...)
		}
		if _, err := p.cache.Put(t.Context(), item, make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	p.first(sentinel, chain[0])
	base := max(c.blocks, 1)
	if c.adapter != "" {
		base = 1
	}
	p.counts("the prompt", bodyOf("sim", tokens, nil), base)
	if c.adapter != "" { // the router knows all that is stored, so its first answer must be right
		for of, want := range map[string]int{"sql": c.blocks, "chat": 0} {
			if e := p.site.explainAs("completions", bodyOf(of, tokens, nil)); e.Candidates[0].Disk != want {
				t.Errorf("%d blocks count for %s, want %d", e.Candidates[0].Disk, of, want)
			}
		}
	}
	if c.salt != "" {
		p.counts("the prompt with the salt", bodyOf(model, tokens, map[string]any{"cache_salt": c.salt}), 8)
	}
	said, _ := p.stats()
	ctltest.Want(t, said, c.says)
}
