package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// lmcacheChunk is LMCache's chunk, in tokens.
const lmcacheChunk = 256

// TestVLLMLMCache: two servers keep their blocks with LMCache, unchanged, in the daemons of their
// hosts, and one of them restarts in the middle of the conversations. What the router then counts
// of a prompt, on the server's host and on the other one, is what a server without blocks in its
// own memory loads: as many tokens, and none that it computes.
func TestVLLMLMCache(t *testing.T) {
	s := prepared(t, "vllm")
	template := filepath.Join(s.run, "lmcache.jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	caches := s.cachesOf(t, "1GiB", "a", "b")
	var engines []*engine
	for i, c := range caches {
		engines = append(engines, s.lmcache(t, fmt.Sprint("lmcache-", i), c, template))
	}
	for i, e := range engines {
		e.awaitReady(t)
		s.teller(t, e, caches[i])
	}
	w := s.site(t, engines...)
	r, all := w.talk(t, engines)
	t.Logf("prompt tokens after the restart: %d, computed %d; of %d later turns, the router believed %d to have more "+
		"cached than the server loaded, %d less", r.prompted, r.computed, r.later, r.more, r.less)
	if r.more > r.later/50 { // what the header says leaves out blocks of other hosts
		t.Error("the router believed too much for more than 2 %")
	}
	for _, c := range caches {
		c.settled(t)
	}
	for _, e := range engines {
		e.kill()
		e.start(t)
		e.awaitReady(t)
	}
	within(t, soon, "the router uses both again", func() bool { return w.eligible() == len(engines) })
	var counted, near, loaded, computed int
	for i := range all {
		e := engines[i%2]
		body := chatBody(all[i].said[:len(all[i].said)-1], object{"max_tokens": 2})
		here, b := w.warm(t, e.id, body)
		direct := &site{owner: t, url: e.url(), client: http.DefaultClient}
		a := direct.must(t, "/v1/chat/completions", body)
		n, _ := a.counts()
		if b != n.cached || b%lmcacheChunk != 0 || b < n.prompt/lmcacheChunk*lmcacheChunk {
			t.Errorf("%s on %s: %d tokens counted, %d of them on its host; %d of %d loaded", all[i].name, e.id, b, here,
				n.cached, n.prompt)
		}
		counted, near, loaded, computed = counted+b, near+here, loaded+n.cached, computed+max(b-n.cached, 0)
	}
	t.Logf("%d tokens counted, of which %d only on the other host; %d loaded; %d counted and computed", counted,
		counted-near, loaded, computed)
	for _, c := range caches {
		t.Logf("cache %s: %.0f blocks pulled, %.0f MiB", c.id, c.metric(t, "fleet_pulled_total"),
			c.metric(t, "fleet_pulled_bytes_total")/(1<<20))
	}
	if counted == near {
		t.Error("nothing counted that only the other host has")
	}
}

// lmcache starts a server with LMCache on a cache.
func (s setup) lmcache(t *testing.T, id string, c *cache, template string) *engine {
	t.Helper()
	page := fmt.Sprintf("chunk_size: %d\nlocal_cpu: false\nmax_local_cpu_size: 0.5\nremote_url: \"redis://%s\"\n"+
		"remote_serde: \"naive\"\npre_caching_hash_algorithm: sha256_cbor\n", lmcacheChunk, c.resp)
	file := filepath.Join(s.run, id+".yaml")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	events, _ := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq",
		"endpoint": "ipc://" + filepath.Join(s.run, id), "replay_endpoint": "ipc://" + filepath.Join(s.run, id+"-r")})
	connector, _ := json.Marshal(object{"kv_connector": "LMCacheCPUConnector",
		"kv_connector_module_path": "lmcache_cpu_connector", "kv_role": "kv_both"})
	e := &engine{setup: s, id: id, address: free(t), env: []string{"LMCACHE_CONFIG_FILE=" + file},
		flags: vllmFlags(s.model, "--enable-prompt-tokens-details", "--kv-events-config", string(events),
			"--kv-transfer-config", string(connector), "--chat-template", template),
		options: ",kv=unix://" + c.grpc, tokenizer: s.model, template: template}
	e.start(t)
	return e
}

// teller starts an agent that tells the cache what LMCache's chunks stand for.
func (s setup) teller(t *testing.T, e *engine, c *cache) {
	t.Helper()
	page := fmt.Sprintf(`[agent]
listen = %q
admin = %q
node_id = %q
dtype = "float32"
[engine]
kind = "vllm"
url = %q
[kv_events]
endpoint = %q
replay = %q
report = %q
[kv_events.lmcache]
remote_url = %q
model = %q
`, free(t), free(t), e.id, e.url(), "ipc://"+filepath.Join(s.run, e.id), "ipc://"+filepath.Join(s.run, e.id+"-r"),
		c.grpc, "redis://"+c.resp, s.model)
	file := filepath.Join(s.run, e.id+"-agent.toml")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	s.launch(t, e.id+"-agent", nil, filepath.Join(s.bin, "cgn-agent"), "--config", file)
}

// warm returns how many leading tokens of a chat the router believes the node to have in the tiers
// of its host, and with those that other hosts have.
func (w *site) warm(t *testing.T, node string, body object) (here, all int) {
	t.Helper()
	return w.warmAs(t, "chat", node, body)
}

// warmAs is warm for a request of another API.
func (w *site) warmAs(t *testing.T, api, node string, body object) (here, all int) {
	t.Helper()
	page, _ := json.Marshal(body)
	resp, err := w.client.Post(w.admin+"/debug/route?api="+api, "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e struct {
		Candidates []struct {
			Node   string `json:"node"`
			Disk   int    `json:"matched_disk"`
			Shared int    `json:"matched_shared"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		t.Fatal(err)
	}
	for _, c := range e.Candidates {
		if c.Node == node {
			return c.Disk * ourBlock, c.Shared * ourBlock
		}
	}
	t.Fatalf("no candidate %s: %+v", node, e)
	return 0, 0
}
