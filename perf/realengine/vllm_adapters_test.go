package realengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// adapterSite is a router with engines that serve two LoRA adapters, sql and chat, and have one of
// them loaded at a time.
type adapterSite struct {
	*site
	adapters string // directory of the adapters
}

// TestVLLMAdapters: cgn-ctl loads adapters into real engines. The router knows which engine has
// loaded which adapter, and sends requests for an adapter there.
func TestVLLMAdapters(t *testing.T) {
	s := prepared(t, "vllm")
	events, replay := "ipc://"+filepath.Join(s.run, "lora-events"), "ipc://"+filepath.Join(s.run, "lora-replay")
	config, err := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events,
		"replay_endpoint": replay, "buffer_steps": 10000})
	if err != nil {
		t.Fatal(err)
	}
	flags := vllmFlags(s.model, "--enable-prompt-tokens-details", "--enable-lora", "--max-loras", "1",
		"--max-lora-rank", "8")
	env := []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"}
	one := &engine{setup: s, id: "lora-1", address: free(t), flags: flags, env: env}
	two := &engine{
		setup: s, id: "lora-2", address: free(t), flags: append(flags[:len(flags):len(flags)], "--kv-events-config",
			string(config)),
		env: env, options: ",kv-events=" + events + ",kv-replay=" + replay, settings: `adapter_load = "20s"`,
	}
	for _, e := range []*engine{one, two} {
		e.start(t)
	}
	for _, e := range []*engine{one, two} {
		e.awaitReady(t)
	}
	w := &adapterSite{s.site(t, one, two), filepath.Join(filepath.Dir(s.model), "adapters")}
	t.Run("Loads", w.loads)
	t.Run("Answers", w.answers)
	t.Run("Stays", w.stays)
	t.Run("BlocksApart", w.blocksApart)
	t.Run("Unloads", w.unloads)
	t.Run("Killed", w.goesElsewhere)
}

// ctl runs cgn-ctl model adapter and returns its output, and whether it succeeded.
func (w *adapterSite) ctl(t *testing.T, args ...string) (out string, ok bool) {
	t.Helper()
	argv := append([]string{"model", "adapter"}, args...)
	page, err := exec.CommandContext(t.Context(), filepath.Join(w.setup.bin, "cgn-ctl"),
		append(argv, "--admin", w.admin)...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return string(page), err == nil
}

func (w *adapterSite) mustCtl(t *testing.T, want string, times int, args ...string) {
	t.Helper()
	if out, ok := w.ctl(t, args...); !ok || strings.Count(out, want) != times {
		t.Fatalf("%v: want %d times %q\n%s", args, times, want, out)
	}
}

func (w *adapterSite) loads(t *testing.T) {
	for _, adapter := range []string{"sql", "chat"} {
		path := filepath.Join(w.adapters, adapter)
		w.mustCtl(t, " loaded", 2, "load", model, adapter, "--path", path)
		w.mustCtl(t, "it was loaded already", 2, "load", model, adapter, "--path", path)
	}
	if out, ok := w.ctl(t, "load", model, "sql", "--path", "/elsewhere"); ok ||
		strings.Count(out, "it is loaded from "+w.adapters) != 2 {
		t.Errorf("from another path: %s", out)
	}
	if out, ok := w.ctl(t, "load", model, "new", "--path", "/nowhere", "--node", "lora-1"); ok ||
		!strings.Contains(out, "No adapter found for /nowhere") {
		t.Errorf("from nowhere: %s", out)
	}
}

// completion asks for a completion of a text by a model.
func completion(of, text string) object {
	return object{"model": of, "prompt": text, "max_tokens": 12, "temperature": 0}
}

// answers: the base model and each adapter answer in their own way, on both engines.
func (w *adapterSite) answers(t *testing.T) {
	texts := map[string]string{}
	for _, of := range []string{model, "sql", "chat"} {
		for range 2 {
			a := w.must(t, "/v1/completions", completion(of, prose("answers", 200)))
			var doc struct{ Choices []struct{ Text string } }
			if err := json.Unmarshal(a.body, &doc); err != nil || len(doc.Choices) != 1 {
				t.Fatalf("%v", a)
			}
			if before, known := texts[of]; known && before != doc.Choices[0].Text {
				t.Errorf("%s answers %q and %q", of, before, doc.Choices[0].Text)
			}
			texts[of] = doc.Choices[0].Text
		}
	}
	if texts[model] == texts["sql"] || texts["sql"] == texts["chat"] {
		t.Errorf("the adapters change nothing: %q", texts)
	}
}

// loaded returns which adapters each engine has loaded (+), has not loaded (-), or may have loaded
// (?), in the router's view.
func (w *adapterSite) loaded() string {
	var view struct {
		Nodes []struct {
			ID       string
			Adapters []struct {
				Name   string
				Loaded *bool
			}
		}
	}
	_ = json.Unmarshal(w.read("/debug/fleet"), &view)
	var text strings.Builder
	for _, n := range view.Nodes {
		fmt.Fprintf(&text, "%s:", n.ID)
		for _, a := range n.Adapters {
			switch {
			case a.Loaded == nil:
				text.WriteString(" " + a.Name + "?")
			case *a.Loaded:
				text.WriteString(" " + a.Name + "+")
			default:
				text.WriteString(" " + a.Name + "-")
			}
		}
		text.WriteString("; ")
	}
	return text.String()
}

// stays: requests of others load another adapter into each engine, of which the engines' metrics
// tell. The router's requests then go to the engine that has their adapter.
func (w *adapterSite) stays(t *testing.T) {
	for id, adapter := range map[string]string{"lora-1": "sql", "lora-2": "chat"} {
		page, _ := json.Marshal(completion(adapter, prose("past the router", 300)))
		resp, err := http.Post(w.engine(t, id).url()+"/v1/completions", "application/json",
			strings.NewReader(string(page)))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	const want = "lora-1: chat- sql+; lora-2: chat+ sql-; "
	within(t, soon, want, func() bool { return w.loaded() == want })
	loads := w.metric(t, "cgn_router_adapter_loads_total")
	for i := range 8 {
		for adapter, node := range map[string]string{"sql": "lora-1", "chat": "lora-2"} {
			a := w.must(t, "/v1/completions", completion(adapter, prose(fmt.Sprint(adapter, i), 400)))
			if a.node() != node {
				t.Errorf("%s is asked of %s", adapter, a.node())
			}
		}
	}
	if w.loaded() != want || w.metric(t, "cgn_router_adapter_loads_total") != loads {
		t.Errorf("adapters were loaded: %s", w.loaded())
	}
}

// blocksApart: a prompt's blocks count for its own model only, and the router's belief is the
// engine's own count. KV events of an engine with adapters are followed, and name all their blocks.
func (w *adapterSite) blocksApart(t *testing.T) {
	prompt := randomTokens(17, 320)
	for round := range 2 {
		for _, of := range []string{model, "sql", "chat"} {
			a := w.must(t, "/v1/completions", object{"model": of, "prompt": prompt, "max_tokens": 1, "temperature": 0})
			c, ok := a.counts()
			switch {
			case !ok:
				t.Errorf("%v", a)
			case round == 0 && (c.cached != 0 || a.believed() != 0):
				t.Errorf("%s found %d tokens of another model's prompt; %.2f were believed", of, c.cached, a.believed())
			case round == 1 && (c.cached == 0 || a.believed() < 0.9):
				t.Errorf("%s found %d tokens of its own prompt; %.2f were believed", of, c.cached, a.believed())
			}
		}
	}
	if w.metric(t, "cgn_router_kv_events_following") != 1 || w.metric(t, "cgn_router_kv_events_blocks") == 0 ||
		w.metric(t, "cgn_router_kv_events_unnamed_total") != 0 {
		t.Error("the KV events of an engine with adapters do not count")
	}
}

func (w *adapterSite) unloads(t *testing.T) {
	w.mustCtl(t, " unloaded", 1, "unload", model, "chat", "--node", "lora-1")
	w.mustCtl(t, "it was not loaded", 1, "unload", model, "chat", "--node", "lora-1")
	for range 3 {
		if a := w.must(t, "/v1/completions", completion("chat", prose("one is left", 200))); a.node() != "lora-2" {
			t.Errorf("chat is asked of %s", a.node())
		}
	}
}

// goesElsewhere: the death of the engine that has an adapter loaded costs no request.
func (w *adapterSite) goesElsewhere(t *testing.T) {
	w.engine(t, "lora-1").kill()
	for i := range 4 {
		a := w.must(t, "/v1/completions", completion("sql", prose(fmt.Sprint("after the death ", i), 300)))
		if a.node() != "lora-2" {
			t.Errorf("sql is asked of %s", a.node())
		}
	}
	within(t, soon, "sql is loaded at the other", func() bool {
		return strings.HasSuffix(w.loaded(), "lora-2: chat- sql+; ")
	})
}

// TestVLLMAdaptersShared: what one server has stored for an adapter counts for the other server's
// node, and the other server loads as much. Both have the same sql, and a chat of other files each.
func TestVLLMAdaptersShared(t *testing.T) {
	s := prepared(t, "vllm")
	folder := filepath.Join(filepath.Dir(s.model), "adapters")
	caches := s.caches(t, "a", "b")
	var engines []*engine
	for i, files := range []string{"chat", "sql"} {
		id := fmt.Sprint("shared-", i+1)
		flags := append(connected(object{"socket": caches[i].lease, "node": id}), "--enable-lora", "--max-loras", "2",
			"--max-lora-rank", "8", "--lora-modules", "sql="+filepath.Join(folder, "sql"),
			"chat="+filepath.Join(folder, files))
		e := s.engine(t, id, vllmFlags(s.model, flags...)...)
		e.options = ",kv=unix://" + caches[i].grpc
		engines = append(engines, e)
	}
	for _, e := range engines {
		e.awaitReady(t)
	}
	w := s.site(t, engines...)
	const whole, length = 10 * blockTokens, 10*blockTokens + 5
	ask := func(e *engine, body object) counts {
		at := &site{owner: t, url: e.url(), client: http.DefaultClient}
		n, ok := at.must(t, "/v1/completions", body).counts()
		if !ok {
			t.Fatal("no cached-token count")
		}
		return n
	}
	prompt := func(of, salt string, tokens []int) object {
		body := tokenBody(tokens, salt)
		body["model"] = of
		return body
	}
	for _, of := range []string{"sql", "chat"} { // a server says what it reads at an adapter's first request
		ask(engines[1], prompt(of, "", randomTokens(1, length)))
	}
	caches[1].reads(t, s, "shared-2", 2) // its adapters have the same files
	stored := randomTokens(2, length)
	for _, of := range []string{model, "sql", "chat"} {
		ask(engines[0], prompt(of, "", stored))
	}
	ask(engines[0], prompt("sql", "tenant", stored))
	caches[0].settled(t)
	for _, c := range []struct {
		of, salt string
		want     int
	}{{model, "", whole}, {"sql", "", whole}, {"sql", "tenant", whole}, {"chat", "", 0}, {"sql", "other", 0}} {
		body, counted := prompt(c.of, c.salt, stored), 0
		within(t, soon, fmt.Sprintf("%d tokens count for %s %s", c.want, c.of, c.salt), func() bool {
			_, counted = w.warmAs(t, "completions", "shared-2", body)
			return counted == c.want
		})
		before := engines[1].source(t, "external_kv_transfer")
		n := ask(engines[1], body)
		loaded := engines[1].source(t, "external_kv_transfer") - before
		t.Logf("%s %s: %d tokens counted, %d loaded", c.of, c.salt, counted, loaded)
		if loaded != c.want || max(n.cached, 0) != c.want {
			t.Errorf("%s %s: %d tokens counted, %d loaded, %+v", c.of, c.salt, counted, loaded, n)
		}
	}
}
