package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	tokenizer "github.com/cognitora/dataplane/router/tokens"
	"github.com/cognitora/dataplane/sim/engine"
)

const chatML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}" +
	"{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// modelFiles makes a directory with a real tokenizer and a chat template.
func modelFiles(t *testing.T, template string) string {
	t.Helper()
	doc, err := os.ReadFile("tokens/testdata/tokenizers.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Model    map[string]json.RawMessage
		Added    json.RawMessage `json:"added_tokens"`
		Variants map[string]struct{ File map[string]json.RawMessage }
	}
	if err := json.Unmarshal(doc, &g); err != nil {
		t.Fatal(err)
	}
	whole := map[string]any{"model": g.Model, "added_tokens": g.Added}
	for k, v := range g.Variants["qwen"].File {
		whole[k] = v
	}
	dir := t.TempDir()
	for name, content := range map[string]any{"tokenizer.json": whole,
		"tokenizer_config.json": map[string]any{"chat_template": template}} {
		page, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(page))
	}
	return dir
}

// completeTokens asks an engine directly with the tokens of a prompt. An empty salt is left out.
func completeTokens(t *testing.T, e *engine.Engine, ids []uint32, salt string) {
	t.Helper()
	body := map[string]any{"model": "sim", "prompt": ids, "max_tokens": 1}
	if salt != "" {
		body["cache_salt"] = salt
	}
	page, _ := json.Marshal(body)
	resp, err := http.Post(e.URL()+"/v1/completions", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
}

// TestExactDigests checks that KV events tell the router which blocks of texts and chats an engine
// has cached. The router computes these blocks from the engine's own tokens.
func TestExactDigests(t *testing.T) {
	t.Parallel()
	dir := modelFiles(t, chatML)
	engines := simulate(t, 1, publishing)
	pub, replay := engines[0].KVEndpoints()
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: dir}}
	})
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	eventually(t, "the events are followed", func() bool { return s.metrics().sum("cgn_router_caches_engines") == 1 })
	model, err := tokenizer.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	set := tokenizer.NewSet(map[string]*tokenizer.Model{"sim": model}, 1<<20, 1<<20)
	const line = "The router and the cache, the prefill of the token block for the engine 123, Größe 日本語.\n"
	text := strings.Repeat(line, 25)
	forms := map[string]tokenizer.API{"completions": tokenizer.Completions, "chat": tokenizer.Chat,
		"responses": tokenizer.Responses, "messages": tokenizer.Messages}
	for api, body := range map[string]map[string]any{
		"completions": {"model": "sim", "prompt": text},
		"messages":    {"model": "sim", "max_tokens": 5, "system": []any{map[string]any{"type": "text", "text": text[700:]}}, "messages": []any{map[string]any{"role": "user", "content": "hi"}}},
		"responses":   {"model": "sim", "instructions": text[900:], "input": "hi"},
		"chat":        {"model": "sim", "messages": []any{map[string]any{"role": "system", "content": text[500:]}, map[string]any{"role": "user", "content": "hi"}}},
	} {
		for _, salt := range []string{"", "tenant"} {
			body := maps.Clone(body)
			if salt != "" {
				body["cache_salt"] = salt
			}
			page, _ := json.Marshal(body)
			if e := s.explainAs(api, string(page)); e.Candidates[0].Matched != 0 {
				t.Fatalf("%s: %+v is known before", api, e)
			}
			ids := set.Make("sim", forms[api], page, 0, nil).IDs
			completeTokens(t, engines[0], ids, salt)
			want := len(ids) / 32 * 2
			eventually(t, fmt.Sprintf("%s %s: %d blocks are known", api, salt, want), func() bool {
				e := s.explainAs(api, string(page))
				return e.Candidates[0].Matched == want && e.Blocks == len(ids)/16
			})
		}
	}
	large, _ := json.Marshal(map[string]any{"model": "sim", "prompt": strings.Repeat("x ", 300<<10)})
	s.explainAs("completions", string(large))
	p := s.metrics()
	for series, least := range map[string]float64{
		`cgn_router_tokenised_total{result="large"}`: 1, `cgn_router_tokenised_total{result="exact"}`: 8,
		"cgn_router_tokenised_bytes_total": 2000, "cgn_router_tokenised_known_bytes_total": 1000,
		"cgn_router_tokenise_seconds_count": 8,
	} {
		name, label, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		got := p.sum(name)
		if label != "" {
			got = p.sum(name, label)
		}
		if got < least {
			t.Errorf("%s is %v, not %v", series, got, least)
		}
	}
}

func TestTokenizersAreChecked(t *testing.T) {
	good := modelFiles(t, chatML)
	for want, m := range map[string]router.ModelConfig{
		"model[0].tokenizer (sim): open /nowhere/tokenizer.json": {Name: "sim", Tokenizer: "/nowhere"},
		"model[0].chat_template: needs model[0].tokenizer":       {Name: "sim", ChatTemplate: "x"},
		"model[0].chat_template: needs":                          {Name: "sim", Tokenizer: "none", ChatTemplate: "x"},
		"model[0].chat_template: needs model[0]":                 {Name: "sim", Tokenizer: "learn", ChatTemplate: "x"},
		"chat template: open /nowhere.jinja": {Name: "sim", Tokenizer: good,
			ChatTemplate: "/nowhere.jinja"},
	} {
		var c router.Config
		if err := config.Defaults(&c); err != nil {
			t.Fatal(err)
		}
		c.Router.Backends, c.Router.Listen, c.Router.Admin = []string{"http://127.0.0.1:8001"}, "127.0.0.1:0",
			"127.0.0.1:0"
		c.Models = []router.ModelConfig{m}
		r, err := router.New(c)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestEventsNeedATokenizer checks that KV events that count only for token ids are refused. The
// configuration may allow them by saying that prompts are given as token ids.
func TestEventsNeedATokenizer(t *testing.T) {
	t.Parallel()
	const events = "http://127.0.0.1:8001,kv-events=tcp://127.0.0.1:5557"
	none, some := []router.ModelConfig{{Name: "m", Tokenizer: "none"}},
		[]router.ModelConfig{{Name: "m", Tokenizer: "/m"}}
	for _, c := range []struct {
		backend string
		models  []router.ModelConfig
		refused bool
	}{
		{events, nil, true}, {events, []router.ModelConfig{{Name: "m"}}, true}, {events, none, false}, {events, some, false},
		{events + ",model=n", some, true}, {events + ",model=m", some, false}, {"http://127.0.0.1:8001", nil, false},
	} {
		conf := router.Config{Router: router.RouterConfig{Backends: []string{c.backend}}, Models: c.models}
		if err := config.Defaults(&conf); err != nil {
			t.Fatal(err)
		}
		err := conf.Validate()
		if (err != nil) != c.refused ||
			err != nil && !(strings.Contains(err.Error(), "backend.kv_events: http://127.0.0.1:8001") &&
				strings.Contains(err.Error(), "tokenizer = DIRECTORY")) {
			t.Errorf("%s %v: %v", c.backend, c.models, err)
		}
		conf.Etcd.Endpoints = []string{"127.0.0.1:2379"} // where the tokenizer may be
		if err := conf.Validate(); err != nil {
			t.Errorf("%s %v with etcd: %v", c.backend, c.models, err)
		}
	}
}
