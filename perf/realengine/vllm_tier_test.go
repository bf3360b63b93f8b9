package realengine

import (
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/vllmtier"
)

// TestVLLMTier starts a vLLM by an agent with kv_offload = "kvcached-s3", and stores conversations
// in its own object tier. After a restart the router counts the tokens that the server then loads.
func TestVLLMTier(t *testing.T) {
	s := prepared(t, "vllm")
	template := filepath.Join(s.run, "tier.jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	c, s3 := s.tierCache(t)
	e := &engine{setup: s, id: "tier", address: free(t), options: ",kv=unix://" + c.grpc, tokenizer: s.model,
		template: template}
	e.program = s.tierAgent(t, e, c, s3, "tier-1")
	e.awaitReady(t)
	w := s.site(t, e)
	var all [6]conversation
	for k := range talkTurns {
		for i := range all {
			if all[i].name == "" {
				all[i].name = fmt.Sprint("tier talk ", i)
			}
			all[i].turn(t, w, k, 500)
		}
	}
	c.settled(t)
	s.tierKeys(t, s3)
	e.program.stop(t)
	e.program = s.tierAgent(t, e, c, s3, "tier-2")
	e.awaitReady(t)
	within(t, soon, "the router uses it again", func() bool { return w.eligible() == 1 })
	direct := &site{owner: t, url: e.url(), client: http.DefaultClient}
	direct.must(t, "/v1/completions", object{"model": model, "prompt": strings.Repeat("first ", 99), "max_tokens": 1})
	within(t, soon, "the agent has told the engine's first block", func() bool {
		b, _ := w.warm(t, e.id, chatBody(all[0].said[:len(all[0].said)-1], object{"max_tokens": 2}))
		return b > 0
	})
	counted, loaded := 0, 0
	for i := range all {
		body := chatBody(all[i].said[:len(all[i].said)-1], object{"max_tokens": 2})
		b, _ := w.warm(t, e.id, body)
		a := direct.must(t, "/v1/chat/completions", body)
		n, _ := a.counts()
		t.Logf("%s: %d of %d tokens counted, %d loaded", all[i].name, b, n.prompt, n.cached)
		if b != n.cached || b == 0 {
			t.Errorf("%s: %d tokens counted, %d of %d loaded", all[i].name, b, n.cached, n.prompt)
		}
		counted, loaded = counted+b, loaded+n.cached
	}
	t.Logf("%d tokens counted, %d loaded", counted, loaded)
}

// tierCache starts a daemon with an S3 listener.
func (s setup) tierCache(t *testing.T) (c *cache, s3 string) {
	t.Helper()
	data, s3 := filepath.Join(s.run, t.Name()), free(t)
	c = &cache{id: "tier", admin: "http://" + free(t), grpc: filepath.Join(data, "kv.sock")}
	c.program = s.launch(t, t.Name()+"-cache", nil, filepath.Join(s.bin, "cgn-kvcached"), "--data", data,
		"--sock", c.grpc,
		"--ram", "256MiB", "--ssd", "0", "--s3", s3, "--admin", strings.TrimPrefix(c.admin, "http://"))
	within(t, soon, "the cache is ready", func() bool { return healthy(c.admin + "/readyz") })
	return c, s3
}

// tierAgent starts an agent that starts the server.
func (s setup) tierAgent(t *testing.T, e *engine, c *cache, s3, name string) *program {
	t.Helper()
	_, port, _ := net.SplitHostPort(e.address)
	events := "ipc://" + filepath.Join(s.run, name)
	var args []string
	for _, a := range append(vllmFlags(s.model)[1:], "--chat-template", e.template, "--kv-events-config",
		fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}`, events,
			events+"-r")) {
		args = append(args, fmt.Sprintf("%q", a))
	}
	page := fmt.Sprintf(`[agent]
listen = %q
admin = %q
node_id = %q
dtype = "float32"
[engine]
kind = "vllm"
binary = %q
model = %q
port = %s
args = [%s]
env = ["REALENGINE_VLLM=tiering_cpu"]
kv_offload = "kvcached-s3"
[engine.offload]
cpu_bytes = "64MiB"
s3_endpoint = %q
[kv_events]
endpoint = %q
replay = %q
report = %q
`, free(t), free(t), e.id, s.serve, s.model, port, strings.Join(args, ", "), s3, events, events+"-r", c.grpc)
	file := filepath.Join(s.run, name+"-agent.toml")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	return s.launch(t, name+"-agent", nil, filepath.Join(s.bin, "cgn-agent"), "--config", file)
}

// tierKeys reads the keys of the server's objects.
func (s setup) tierKeys(t *testing.T, s3 string) {
	t.Helper()
	r, err := http.Get("http://" + s3 + "/kvcache?list-type=2&max-keys=1000")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	keys := regexp.MustCompile(`<Key>(.*?)</Key>`).FindAllSubmatch(page, -1)
	if err != nil || len(keys) == 0 {
		t.Fatalf("%v: no keys in %s", err, page)
	}
	for i, k := range keys {
		key := html.UnescapeString(string(k[1]))
		if _, err := vllmtier.Parse([]byte(key)); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if i < 4 {
			t.Log(key)
		}
	}
}
