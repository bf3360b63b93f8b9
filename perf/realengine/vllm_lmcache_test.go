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

// TestVLLMLMCache: two servers keep their blocks with LMCache, unchanged, in the daemon of their
// host. What the router counts of a prompt is what a server then loads: as many tokens, and none
// that it computes.
func TestVLLMLMCache(t *testing.T) {
	s := prepared(t, "vllm")
	template := filepath.Join(s.run, "lmcache.jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	c := s.caches(t, "a")[0]
	var engines []*engine
	for i := range 2 {
		engines = append(engines, s.lmcache(t, fmt.Sprint("lmcache-", i), c, template))
	}
	for _, e := range engines {
		e.awaitReady(t)
		s.teller(t, e, c)
	}
	w := s.site(t, engines...)
	var all [12]conversation
	for k := range talkTurns {
		for i := range all {
			if all[i].name == "" {
				all[i].name = fmt.Sprint("talk ", i)
			}
			all[i].turn(t, w, k, 500)
		}
	}
	c.settled(t)
	for _, e := range engines {
		e.kill()
		e.start(t)
		e.awaitReady(t)
	}
	within(t, soon, "the router uses both again", func() bool { return w.eligible() == len(engines) })
	counted, loaded := 0, 0
	for i := range all {
		e := engines[i%2]
		body := chatBody(all[i].said[:len(all[i].said)-1], object{"max_tokens": 2})
		b := w.warm(t, e.id, body)
		direct := &site{owner: t, url: e.url(), client: http.DefaultClient}
		a := direct.must(t, "/v1/chat/completions", body)
		n, _ := a.counts()
		t.Logf("%s: %d of %d tokens counted, %d loaded", all[i].name, b, n.prompt, n.cached)
		if b != n.cached || b%lmcacheChunk != 0 || b < n.prompt/lmcacheChunk*lmcacheChunk {
			t.Errorf("%s: %d tokens counted, %d of %d loaded", all[i].name, b, n.cached, n.prompt)
		}
		counted, loaded = counted+b, loaded+n.cached
	}
	t.Logf("%d tokens counted, %d loaded", counted, loaded)
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

// warm returns how many leading tokens of a chat the router believes the node to have in any tier.
func (w *site) warm(t *testing.T, node string, body object) int {
	t.Helper()
	page, _ := json.Marshal(body)
	resp, err := w.client.Post(w.admin+"/debug/route?api=chat", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e struct {
		Candidates []struct {
			Node string `json:"node"`
			Disk int    `json:"matched_disk"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		t.Fatal(err)
	}
	for _, c := range e.Candidates {
		if c.Node == node {
			return c.Disk * ourBlock
		}
	}
	t.Fatalf("no candidate %s: %+v", node, e)
	return 0
}
