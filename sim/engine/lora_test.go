package engine

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The files *lora* in testdata are answers of vLLM 0.32 with --enable-lora --max-loras 1
// --max-cpu-loras 2 and VLLM_ALLOW_RUNTIME_LORA_UPDATING.

// adapterPath makes the directory of an adapter.
func adapterPath(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAnswersAboutAdaptersAreVLLMs: each recorded request gets the recorded answer, byte for byte.
func TestAnswersAboutAdaptersAreVLLMs(t *testing.T) {
	path := adapterPath(t, "chat")
	e := start(t, func(c *Config) { c.RuntimeLoRA = true })
	lines := strings.Split(strings.TrimSpace(golden(t, "lora-answers.txt")), "\n")
	for i := 0; i+2 < len(lines); i += 3 {
		_, rest, _ := strings.Cut(lines[i], " ")
		at, body, _ := strings.Cut(rest, " ")
		res := post(t, e, at, strings.ReplaceAll(body, "/adapters/chat", path))
		got, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if head := fmt.Sprintf("%d %s", res.StatusCode, res.Header.Get("Content-Type")); head != lines[i+1] {
			t.Errorf("%s: %q, want %q", lines[i], head, lines[i+1])
		}
		sent := strings.ReplaceAll(string(got), path, "/adapters/chat")
		if strings.HasPrefix(sent, "{") { // the order of members differs
			sameValues(t, lines[i], decoded(t, sent), decoded(t, lines[i+2]))
		} else if sent != lines[i+2] {
			t.Errorf("%s: %s, want %s", lines[i], sent, lines[i+2])
		}
	}
	without := start(t)
	if res := post(t, without, "/v1/load_lora_adapter", "{}"); res.StatusCode != http.StatusNotFound {
		t.Errorf("an engine that does not allow it answers %s", res.Status)
	}
}

func sameValues(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func TestModelsWithAdaptersAreVLLMs(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Models, c.Adapters = []string{"tiny"}, []Adapter{{"sql", "/adapters/sql"}, {"chat", "/adapters/chat"}}
	})
	got, want := decoded(t, get(t, e, "/v1/models")), decoded(t, golden(t, "models-lora.json"))
	sameFields(t, "models", got, want)
	for i := range 2 {
		for _, member := range []string{"id", "parent", "owned_by"} {
			if g, w := at(t, got, "data", i, member), at(t, want, "data", i, member); g != w {
				t.Errorf("%s of model %d is %v, want %v", member, i, g, w)
			}
		}
		sameFields(t, "model", at(t, got, "data", i), at(t, want, "data", i))
	}
}

// loraLines returns the series of the metric without their values, sorted.
func loraLines(page string) (lines []string) {
	for line := range strings.Lines(page) {
		if strings.Contains(line, "vllm:lora_requests_info") {
			labels, _, _ := strings.Cut(line, "} ")
			lines = append(lines, strings.TrimSpace(labels))
		}
	}
	slices.Sort(lines)
	return lines
}

// TestMetricsOfAdaptersAreVLLMs: the same requests leave the same series. The latest has the
// highest value.
func TestMetricsOfAdaptersAreVLLMs(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Models, c.Adapters = []string{"tiny"}, []Adapter{{"sql", "/adapters/sql"}, {"chat", "/adapters/chat"}}
	})
	if got := loraLines(get(t, e, "/metrics")); len(got) != 2 {
		t.Errorf("before the first request: %q", got)
	}
	for _, m := range []string{"sql", "chat"} {
		object(t, post(t, e, "/v1/completions", `{"model":"`+m+`","prompt":"hi","max_tokens":3}`), 200)
	}
	want := loraLines(golden(t, "metrics-lora.txt"))
	eventually(t, "the recorded series", func() bool { return slices.Equal(loraLines(get(t, e, "/metrics")), want) })
}

// TestAdaptersShareTheBatch: an adapter beyond MaxLoRAs waits, and others pass it. An adapter that
// is not in memory is loaded first, in place of the one used longest ago.
func TestAdaptersShareTheBatch(t *testing.T) {
	cfg := Config{
		Adapters: []Adapter{{"a", "/a"}, {"b", "/b"}, {"c", "/c"}}, MaxLoRAs: 1, MaxLoadedLoRAs: 2,
		AdapterLoad: time.Second, PrefillTokensPerSecond: 1000, DecodeStep: time.Millisecond,
	}.withDefaults()
	s := newScheduler(cfg, newMeters(), nil)
	s.loras = newLoRAs(&cfg)
	if s.loras.loads != 3 || !slices.Equal(s.loras.memory, []string{"c", "b"}) {
		t.Fatalf("at the start: %+v", s.loras)
	}
	one := func(adapter string) *sequence {
		q := sequenceOf(s, 10, 2, 1)
		if adapter != "" {
			q.adapt(adapter, s.loras.id(adapter), s.cfg.BlockTokens)
		}
		return q
	}
	b, a, base := one("b"), one("a"), one("")
	s.submit([]*sequence{b, a, base})
	if d := s.step(); d != 20*time.Millisecond || b.produced.Load() != 1 || base.produced.Load() != 1 ||
		a.produced.Load() != 0 {
		t.Errorf("first step: %v, %d %d %d tokens", d, b.produced.Load(), base.produced.Load(), a.produced.Load())
	}
	s.step()
	if d := s.step(); d != time.Second+10*time.Millisecond || a.produced.Load() != 1 ||
		!slices.Equal(s.loras.memory, []string{"a", "b"}) {
		t.Errorf("the step that loads a: %v, memory %v", d, s.loras.memory)
	}
}

// TestLazyAdapters: an adapter is listed from its first request on.
func TestLazyAdapters(t *testing.T) {
	e := start(t, func(c *Config) { c.LazyAdapters = []Adapter{{"sql", "/sql"}} })
	listed := func() bool { return strings.Contains(get(t, e, "/v1/models"), `"sql"`) }
	if listed() {
		t.Error("listed before its first request")
	}
	object(t, post(t, e, "/v1/completions", `{"model":"sql","prompt":"hi"}`), 200)
	if !listed() || e.AdapterLoads() != 1 || !slices.Equal(e.LoadedAdapters(), []string{"sql"}) {
		t.Errorf("listed %v, %d loads, %v", listed(), e.AdapterLoads(), e.LoadedAdapters())
	}
}

// TestBlocksOfAdaptersAreApart: a prompt of one adapter finds no block of the base model or of
// another adapter.
func TestBlocksOfAdaptersAreApart(t *testing.T) {
	e := start(t, func(c *Config) { c.Adapters = []Adapter{{"sql", "/sql"}, {"chat", "/chat"}} })
	texts := map[string]bool{}
	for range 2 {
		for _, m := range []string{"sim", "sql", "chat"} {
			doc := object(t, post(t, e, "/v1/completions",
				`{"model":"`+m+`","max_tokens":4,"prompt":"`+strings.Repeat("the same ", 40)+`"}`), 200)
			texts[at(t, doc, "choices", 0, "text").(string)] = true
			cached := at(t, doc, "usage", "prompt_tokens_details", "cached_tokens").(float64)
			if again := len(texts) == 3 && cached > 0; cached > 0 && !again {
				t.Errorf("%s found %v tokens of another model's prompt", m, cached)
			}
		}
	}
	if len(texts) != 3 {
		t.Errorf("%d different answers of 3 models", len(texts))
	}
	if res := post(t, e, "/v1/completions", `{"model":"other","prompt":"x"}`); res.StatusCode != 404 {
		t.Errorf("an unknown adapter: %s", res.Status)
	}
}
