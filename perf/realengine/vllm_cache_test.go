package realengine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/pki"
)

// cache is a cgn-kvcached of a fleet on this machine.
type cache struct {
	*program
	id, resp, admin string
	grpc, lease     string // sockets
}

// caches starts daemons that know each other by an etcd in this process. The daemons' certificates
// are made as an operator makes them.
func (s setup) caches(t *testing.T, ids ...string) []*cache {
	t.Helper()
	return s.cachesOf(t, "256MiB", ids...)
}

// cachesOf is caches with a size of RAM.
func (s setup) cachesOf(t *testing.T, ram string, ids ...string) (all []*cache) {
	t.Helper()
	folder := filepath.Join(s.run, t.Name())
	certificates := filepath.Join(folder, "pki")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(s.bin, "cgn-ctl"), "pki", "bootstrap", "--dir", certificates, "--role",
		"kvcached").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	etcd, err := etcdserver.Start(filepath.Join(folder, "etcd"), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	files := pki.FilesIn(certificates, pki.KVCached)
	for _, id := range ids {
		data := filepath.Join(folder, id)
		c := &cache{id: id, resp: free(t), admin: "http://" + free(t), grpc: filepath.Join(data, "kv.sock"),
			lease: filepath.Join(data, "kv-lease.sock")}
		c.program = s.launch(t, t.Name()+"-"+id, nil, filepath.Join(s.bin, "cgn-kvcached"), "--data", data, "--sock",
			c.grpc,
			"--ram", ram, "--ssd", "0", "--resp", c.resp, "--quic", free(t), "--admin", strings.TrimPrefix(c.admin,
				"http://"),
			"--cache-id", id, "--etcd", "http://"+etcd.Endpoint(), "--fleet.lane", "quic",
			"--tls.ca", files.CA, "--tls.cert", files.Cert, "--tls.key", files.Key)
		all = append(all, c)
	}
	for _, c := range all {
		within(t, soon, "cache "+c.id+" knows the others", func() bool {
			if c.ended() {
				t.Fatalf("cache %s ended: %v", c.id, c.cmd.ProcessState)
			}
			return healthy(c.admin+"/readyz") && c.metric(t, "fleet_members") == float64(len(ids))
		})
	}
	return all
}

// metric returns the sum of the daemon's samples of cgn_kvcached_NAME.
func (c *cache) metric(t *testing.T, name string) float64 {
	t.Helper()
	return scrape(t, c.admin, "cgn_kvcached_"+name, "")
}

// scrape returns the sum of the samples of this name in a program's /metrics whose labels contain
// label.
func scrape(t *testing.T, url, name, label string) (total float64) {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range sample.FindAllStringSubmatch(string(page), -1) {
		if m[1] != name || !strings.Contains(m[2], label) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(m[3], &v); err != nil {
			t.Errorf("%s/metrics: %s", url, m[0])
		}
		total, found = total+v, true
	}
	if !found {
		t.Fatalf("%s/metrics has no %s {%s}", url, name, label)
	}
	return total
}

// connected returns the flags of a server with the connector of deploy/vllm and these settings.
func connected(settings object) []string {
	config, _ := json.Marshal(object{
		"kv_connector": "KVCachedConnector", "kv_connector_module_path": "cognitora_kv.connector", "kv_role": "kv_both",
		"kv_load_failure_policy": "recompute", "kv_connector_extra_config": settings,
	})
	return []string{"--enable-prompt-tokens-details", "--kv-transfer-config", string(config)}
}

// TestVLLMPackage runs the package's own tests against a daemon.
func TestVLLMPackage(t *testing.T) {
	s := prepared(t, "vllm")
	c := s.caches(t, "a")[0]
	tests := exec.Command(os.Getenv("REALENGINE_PYTHON"), "-m", "unittest", "discover", "-s",
		filepath.Join(filepath.Dir(s.bin), "deploy", "vllm", "tests"))
	tests.Env = append(os.Environ(), "KV_LEASE="+c.lease, "KV_RESP="+c.resp, "KV_PID="+strconv.Itoa(c.cmd.Process.Pid))
	out, err := tests.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// reads waits until a node's engine has told the daemon that it can read some namespaces, and
// returns them.
func (c *cache) reads(t *testing.T, s setup, node string, count int) (namespaces []string) {
	t.Helper()
	within(t, soon, fmt.Sprintf("%s reads %d namespaces", node, count), func() bool {
		out, err := exec.Command(filepath.Join(s.bin, "cgn-ctl"), "kv", "stats", "--sock", c.grpc, "-o",
			"json").Output()
		var stats struct {
			Readers []struct {
				Node       string
				Namespaces []string
			}
		}
		if err == nil {
			err = json.Unmarshal(out, &stats)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range stats.Readers {
			if r.Node == node {
				namespaces = r.Namespaces
			}
		}
		return len(namespaces) == count
	})
	return namespaces
}

// unread waits until kv stats says that blocks do not count because they differ in something from
// those that an engine reads.
func (c *cache) unread(t *testing.T, s setup, what string) {
	t.Helper()
	word := map[string]string{"dtype": "data type", "revision": "revision"}[what]
	within(t, soon, "kv stats says that blocks of another "+what+" do not count", func() bool {
		out, err := exec.Command(filepath.Join(s.bin, "cgn-ctl"), "kv", "stats", "--sock", c.grpc).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			_, differs, found := strings.Cut(line, " blocks do not count: no engine that has said what it reads can read "+
				"them; the nearest differs in ")
			if found && strings.HasPrefix(differs, word) {
				return true
			}
		}
		return false
	})
}

// TestVLLMFaults: no server uses blocks of another revision, data type, adapter or salt, and none
// fails if blocks are gone between their lookup and their use.
func TestVLLMFaults(t *testing.T) {
	s := prepared(t, "vllm")
	c := s.caches(t, "a")[0]
	adapters := filepath.Join(filepath.Dir(s.model), "adapters")
	lora := []string{"--enable-lora", "--max-lora-rank", "8", "--lora-modules", "sql=" + filepath.Join(adapters, "sql"),
		"chat=" + filepath.Join(adapters, "chat")}
	with := func(id string, settings object, more ...string) *engine {
		settings["socket"], settings["node"] = c.lease, id
		return s.engine(t, id, vllmFlags(s.model, append(connected(settings), more...)...)...)
	}
	writer := with("vllm-writes", object{}, lora...)
	writer.awaitReady(t)
	text := prose("planted", 1200)
	of := func(model, salt string) object {
		body := object{"model": model, "max_tokens": 24}
		if salt != "" {
			body["cache_salt"] = salt
		}
		return body
	}
	said := map[string]string{}
	for _, as := range []string{model, "sql", "chat"} {
		var first counts
		said[as], first = writer.asksAs(t, text, of(as, ""))
		if first.cached != 0 {
			t.Errorf("%s: %d tokens were cached at first", as, first.cached)
		}
	}
	if _, salted := writer.asksAs(t, text, of(model, "tenant")); salted.cached != 0 {
		t.Errorf("%d tokens were cached for a salt", salted.cached)
	}
	c.settled(t)
	written := c.reads(t, s, "vllm-writes", 3)
	writer.stop(t)
	for name, other := range map[string]*engine{
		"revision": with("vllm-revision", object{"revision": "another"}),
		"dtype":    with("vllm-dtype", object{}, "--dtype", "bfloat16"),
	} {
		other.awaitReady(t)
		if _, got := other.asks(t, text); got.cached != 0 {
			t.Errorf("another %s: %d tokens were loaded", name, got.cached)
		}
		if read := c.reads(t, s, "vllm-"+name, 1); slices.Contains(written, read[0]) {
			t.Errorf("another %s: it says that it can read %s", name, read[0])
		}
		c.unread(t, s, name)
		other.stop(t)
	}
	reader := with("vllm-reads", object{}, lora...)
	reader.awaitReady(t)
	for as, want := range said {
		got, n := reader.asksAs(t, text, of(as, ""))
		if n.cached != (n.prompt-1)/blockTokens*blockTokens || got != want {
			t.Errorf("%s: %d of %d tokens were loaded; %q, not %q", as, n.cached, n.prompt, got, want)
		}
	}
	for salt, loads := range map[string]bool{"tenant": true, "other": false} {
		if _, n := reader.asksAs(t, text, of(model, salt)); (n.cached > 0) != loads {
			t.Errorf("salt %s: %d tokens were loaded", salt, n.cached)
		}
	}
	if read := c.reads(t, s, "vllm-reads", 3); !slices.Equal(slices.Sorted(slices.Values(read)),
		slices.Sorted(slices.Values(written))) {
		t.Errorf("the engine says that it can read %q, not %q", read, written)
	}
	reader.stop(t)
	s.vanishing(t, c, text, said[model])
}

// vanishing: half of the blocks that a server has found are gone when it loads them, and it
// computes the rest of longer prompts in the same step. It answers as a server without a cache
// does. So does a server that loads what the first one has stored.
func (s setup) vanishing(t *testing.T, c *cache, text, want string) {
	t.Helper()
	flags := connected(object{"socket": c.lease})
	for i := range flags {
		flags[i] = strings.NewReplacer(`"KVCachedConnector"`, `"FaultyConnector"`, "cognitora_kv.connector",
			"faulty_connector").Replace(flags[i])
	}
	without := s.engine(t, "vllm-without", vllmFlags(s.model, "--enable-prompt-tokens-details")...)
	without.awaitReady(t)
	longer := map[string]string{}
	for _, scheduling := range []string{"--async-scheduling", "--no-async-scheduling"} {
		faulty := s.engine(t, "vllm-faulty"+scheduling, vllmFlags(s.model, append(flags, scheduling)...)...)
		faulty.awaitReady(t)
		for i := range 3 {
			prompt := text + prose(fmt.Sprint("tail ", i, scheduling), 800)
			longer[prompt], _ = without.asks(t, prompt)
			if got, _ := faulty.asks(t, prompt); got != longer[prompt] {
				t.Errorf("%s: with blocks that vanish: %q, not %q", scheduling, got, longer[prompt])
			}
		}
		for range 2 {
			if got, _ := faulty.asks(t, text); got != want {
				t.Errorf("%s: with blocks that vanish: %q, not %q", scheduling, got, want)
			}
		}
		if n := faulty.source(t, "local_compute"); n == 0 {
			t.Errorf("%s: nothing was computed", scheduling)
		}
		c.settled(t)
		faulty.stop(t)
	}
	without.stop(t)
	after := s.engine(t, "vllm-after", vllmFlags(s.model, connected(object{"socket": c.lease})...)...)
	after.awaitReady(t)
	for prompt, want := range longer {
		got, n := after.asks(t, prompt)
		if n.cached != (n.prompt-1)/blockTokens*blockTokens || got != want {
			t.Errorf("after blocks have vanished: %d of %d tokens were loaded; %q, not %q", n.cached, n.prompt, got, want)
		}
	}
}

// TestVLLMTensorParallel: two tensor-parallel ranks store and load their own parts of each block,
// which has 64 tokens. An engine with one rank loads none of them.
func TestVLLMTensorParallel(t *testing.T) {
	s := prepared(t, "vllm")
	c := s.caches(t, "a")[0]
	const size = 64
	sized := vllmFlags(s.model, append(connected(object{"socket": c.lease}), "--block-size", strconv.Itoa(size))...)
	flags := append(slices.Clip(sized), "--tensor-parallel-size", "2", "--distributed-executor-backend", "mp")
	text := prose("two ranks", 1200)
	var said [2]string
	for i := range said {
		e := s.engine(t, fmt.Sprint("vllm-tp-", i), flags...)
		e.awaitReady(t)
		var n counts
		said[i], n = e.asks(t, text)
		if want := i * (n.prompt - 1) / size * size; n.cached != want {
			t.Errorf("start %d: %d of %d tokens were loaded, not %d", i+1, n.cached, n.prompt, want)
		}
		c.settled(t)
		if blocks := c.metric(t, "ram_blocks"); blocks < float64(2*(n.prompt/size)) || int(blocks)%2 != 0 {
			t.Errorf("%.0f objects for %d tokens", blocks, n.prompt)
		}
		e.stop(t)
	}
	if said[0] != said[1] {
		t.Errorf("%q, then %q", said[0], said[1])
	}
	one := s.engine(t, "vllm-tp-none", sized...)
	one.awaitReady(t)
	if _, n := one.asks(t, text); n.cached != 0 {
		t.Errorf("one rank loaded %d tokens", n.cached)
	}
}

// asks sends a chat directly to one engine, without a router.
func (e *engine) asks(t *testing.T, text string) (said string, c counts) {
	t.Helper()
	return e.asksAs(t, text, object{"max_tokens": 24})
}

// asksAs is asks with these members of the request.
func (e *engine) asksAs(t *testing.T, text string, more object) (said string, c counts) {
	t.Helper()
	w := &site{owner: t, url: e.url(), client: http.DefaultClient}
	a := w.must(t, "/v1/chat/completions", chatBody(user(text), more))
	c, ok := a.counts()
	if !ok || c.cached < 0 || a.text() == "" {
		t.Fatalf("no text or no cached-token count: %v", a)
	}
	return a.text(), c
}

const blockTokens = 32 // as in vllmFlags

// TestVLLMCache: a server on another host has computed blocks of 128 tokens and put them in that
// host's cache. The tested server does not compute these blocks again. The first server reaches its
// cache by RESP only.
func TestVLLMCache(t *testing.T) {
	s := prepared(t, "vllm")
	caches := s.caches(t, "a", "b")
	const size = 128
	start := func(id string, settings object) *engine {
		flags := append(connected(settings), "--block-size", strconv.Itoa(size))
		return s.engine(t, id, vllmFlags(s.model, flags...)...)
	}
	first := start("vllm-on-a", object{"socket": filepath.Join(s.run, "none"), "resp": caches[0].resp})
	second := start("vllm-on-b", object{"socket": caches[1].lease})
	first.awaitReady(t)
	second.awaitReady(t)
	f := &fleet{caches[0], caches[1], first, second, size}
	t.Run("Loads", f.loads)
	t.Run("Grows", f.grows)
	t.Run("CacheStops", f.stops)
}

// fleet is two servers, each with the cache of its host.
type fleet struct {
	a, b          *cache
	first, second *engine
	blockTokens   int
}

// settled waits until the cache has taken all blocks that its server saves behind its answers.
func (c *cache) settled(t *testing.T) {
	t.Helper()
	was := -1.0
	within(t, soon, "blocks are saved", func() bool {
		time.Sleep(100 * time.Millisecond)
		now := c.metric(t, "ram_blocks")
		same := now == was
		was = now
		return same
	})
}

// source returns how many prompt tokens the engine reports to have from this source.
func (e *engine) source(t *testing.T, from string) int {
	t.Helper()
	return int(scrape(t, e.url(), "vllm:prompt_tokens_by_source_total", `source="`+from+`"`))
}

// loads: the second server loads prompts that the first server has computed, and must give the same
// texts.
func (f *fleet) loads(t *testing.T) {
	prompts, loaded := 4, 0
	for i := range prompts {
		text := prose(fmt.Sprint("kept ", i), 1200)
		want, cold := f.first.asks(t, text)
		f.a.settled(t)
		computed, external, pulled := f.second.source(t, "local_compute"), f.second.source(t, "external_kv_transfer"),
			f.b.metric(t, "fleet_pulled_total")
		got, warm := f.second.asks(t, text)
		blocks := (cold.prompt - 1) / f.blockTokens
		computed, external = f.second.source(t, "local_compute")-computed,
			f.second.source(t, "external_kv_transfer")-external
		pulled = f.b.metric(t, "fleet_pulled_total") - pulled
		t.Logf("%d prompt tokens: the first server computed %d, the second %d and loaded %d, for which its cache "+
			"pulled %.0f blocks; both said %q",
			cold.prompt, cold.prompt-cold.cached, computed, external, pulled, want)
		if got != want || cold.cached != 0 || warm.prompt != cold.prompt {
			t.Errorf("the first server said %q (%+v), the second %q (%+v)", want, cold, got, warm)
		}
		if warm.cached != blocks*f.blockTokens || external != warm.cached || computed != warm.prompt-warm.cached ||
			pulled != float64(blocks) {
			t.Errorf("%d whole blocks: %+v", blocks, warm)
		}
		loaded += external
	}
	bytes, quic := f.b.metric(t, "fleet_pulled_bytes_total"),
		scrape(t, f.b.admin, "cgn_kvcached_pool_received_bytes_total", `lane="quic"`)
	if hits := scrape(t, f.second.url(), "vllm:external_prefix_cache_hits_total", ""); int(hits) != loaded ||
		bytes == 0 || quic != bytes {
		t.Errorf("loaded %d tokens, %.0f by the engine's count; cache b pulled %.0f bytes, %.0f over QUIC", loaded,
			hits, bytes, quic)
	}
	if _, c := f.second.asks(t, prose("never seen", 1200)); c.cached != 0 {
		t.Errorf("%d tokens of a new prompt were cached", c.cached)
	}
}

// grows: the two servers alternate in a conversation. Each server continues with the blocks that
// the other server has computed.
func (f *fleet) grows(t *testing.T) {
	text, before := prose("conversation", 600), 0
	for turn := range 4 {
		e := []*engine{f.first, f.second}[turn%2]
		said, c := e.asks(t, text)
		f.a.settled(t)
		f.b.settled(t)
		if blocks := before / f.blockTokens; c.cached < (blocks-1)*f.blockTokens {
			t.Errorf("turn %d: %d of %d tokens were cached, the turn before had %d", turn+1, c.cached, c.prompt, before)
		}
		t.Logf("turn %d, %s: %d of %d tokens loaded", turn+1, e.id, c.cached, c.prompt)
		text, before = text+said+prose(fmt.Sprint("turn ", turn), 300), c.prompt
	}
}

// stops: a server whose cache daemon has ended computes all blocks itself, and gives the same
// answers.
func (f *fleet) stops(t *testing.T) {
	text := prose("kept 0", 1200)
	want, _ := f.first.asks(t, text)
	fresh := prose("after the end", 1200)
	other, _ := f.first.asks(t, fresh)
	f.b.stop(t)
	if got, c := f.second.asks(t, text); got != want {
		t.Errorf("without its cache it said %q instead of %q (%+v)", got, want, c)
	}
	if got, c := f.second.asks(t, fresh); got != other || c.cached != 0 {
		t.Errorf("without its cache it said %q instead of %q (%+v)", got, other, c)
	}
	log, err := os.ReadFile(filepath.Join(f.second.run, f.second.id+".log"))
	if err != nil || !strings.Contains(string(log), "blocks not looked up") {
		t.Errorf("its log does not say so: %v", err)
	}
}
