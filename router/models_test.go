package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// modelRow is a model in /debug/fleet.
type modelRow struct {
	Name, Base, Mode string
	Aliases, Nodes   []string
	Prefill          []string
	TokenizerError   string `json:"tokenizer_error"`
}

// models returns the models by name, and the fleet's problems.
func (s *site) models() (models map[string]modelRow, problems string) {
	s.t.Helper()
	_, page := s.get(s.admin + "/debug/fleet")
	var f struct {
		Models   []modelRow
		Problems json.RawMessage
	}
	if err := json.Unmarshal(page, &f); err != nil {
		s.t.Fatal(err)
	}
	models = map[string]modelRow{}
	for _, m := range f.Models {
		models[m.Name] = m
	}
	return models, string(f.Problems)
}

// asking returns a chat request for a model.
func asking(model, content string) string {
	return strings.Replace(chatBody(content, plain), `"sim"`, fmt.Sprintf("%q", model), 1)
}

// TestModelSettings checks that the settings of [[model]] are used: aliases, pools and the policy.
// A reload replaces them while requests run.
func TestModelSettings(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3, func(c *engine.Config) { c.Models = []string{"sim", "large"} })
	s := serve(t, engines, func(c *router.Config) {
		c.Models = []router.ModelConfig{{
			Name: "large", Aliases: []string{"gpt-4o"}, Policy: `{"mode":"round_robin"}`,
			Pools: map[string][]string{"prefill": {"sim-0"}, "decode": {"sim-2"}},
		}}
	})
	served := func(model string) map[string]int {
		nodes := map[string]int{}
		for range 6 {
			r := s.chat(asking(model, "the same question each time"))
			if r.status != 200 {
				t.Fatal(r)
			}
			nodes[r.node()]++
		}
		return nodes
	}
	if got := served("gpt-4o"); got["sim-1"] != 3 || got["sim-2"] != 3 {
		t.Errorf("large's own policy is round robin over two nodes: %v", got)
	}
	if s.metrics().sum("cgn_router_model_max_queue", `model="large"`, `role="decode"`) == 0 ||
		s.metrics().sum("cgn_router_model_max_queue", `model="sim"`, `role="decode"`) != 0 {
		t.Error("sim-2 is a decode node of large, and of no other model")
	}
	if got := served("sim"); len(got) != 1 {
		t.Errorf("the other model has the fleet's policy, by which one node has the prompt: %v", got)
	}
	if e := s.explain(asking("gpt-4o", "hello")); e.Mode != "round_robin" || len(e.Candidates) != 3 ||
		e.Candidates[2].Eligible || !strings.Contains(e.Candidates[2].Reason, "in the pool prefill of model large") {
		t.Errorf("explained as %+v", e)
	}
	next := settings(t, s.log)
	for i, e := range engines {
		next.Router.Backends = append(next.Router.Backends, fmt.Sprintf("%s,id=sim-%d", e.URL(), i))
	}
	next.Models = []router.ModelConfig{{Name: "large", Aliases: []string{"other"}, MaxQueue: 7,
		Pools: map[string][]string{"both": {"sim-0"}}}}
	if _, kept, err := s.ReloadConfig(t.Context(), &next); err != nil ||
		fmt.Sprint(kept) != "[model (timeouts and caps)]" {
		t.Fatalf("kept %q, %v", kept, err)
	}
	if got := served("other"); got["sim-0"] != 6 {
		t.Errorf("after the reload: %v", got)
	}
	if r := s.chat(asking("gpt-4o", "hello")); r.status != 404 {
		t.Errorf("an alias that is gone: %v", r)
	}
	if m, _ := s.models(); m["large"].Mode != "" {
		t.Errorf("its policy is gone: %+v", m["large"])
	}
}

// TestModeOfTheRouter checks that router.mode overrides the mode of the fleet's policy only. A
// model's own policy keeps its mode.
func TestModeOfTheRouter(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, func(c *engine.Config) { c.Models = []string{"sim", "large"} })
	s := serve(t, engines, func(c *router.Config) {
		c.Router.Mode = "random"
		c.Models = []router.ModelConfig{{Name: "large", Policy: `{"mode":"round_robin"}`}}
	})
	for model, want := range map[string]string{"sim": "random", "large": "round_robin"} {
		if e := s.explain(asking(model, "hello")); e.Mode != want {
			t.Errorf("%s is explained as %+v", model, e)
		}
	}
}

// TestUnusedSettingsOfAModelsPolicy checks that the router logs once which settings of a model's
// own policy have no effect.
func TestUnusedSettingsOfAModelsPolicy(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "sim", Policy: `{"mode":"score","ttft_slo_ms":800,"max_share":2}`}}
	})
	next := settings(t, s.log)
	next.Models = []router.ModelConfig{{Name: "sim", Policy: `{"mode":"score","ttft_slo_ms":800,"max_share":2}`,
		Aliases: []string{"x"}}}
	next.Router.Backends = []string{s.engines[0].URL()}
	if _, _, err := s.ReloadConfig(t.Context(), &next); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a model's own policy in force", "settings of a model's policy that have no effect",
		"settings=[max_share]"} {
		if n := s.log.count(text); n != 1 {
			t.Errorf("%d log lines with %q", n, text)
		}
	}
}

// TestModelSettingsOfEtcd checks that settings in etcd are in force without a restart: aliases,
// pools, policy with its cap, and tokenizer.
func TestModelSettingsOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	store := dialEtcd(t, etcd)
	engines := simulate(t, 2)
	s := serve(t, engines, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })
	put := func(m cluster.Model) {
		t.Helper()
		if err := store.PutModel(t.Context(), "sim", m); err != nil {
			t.Fatal(err)
		}
	}
	row := func(what string, ok func(m modelRow) bool) {
		t.Helper()
		var last modelRow
		defer func() {
			if t.Failed() {
				t.Logf("%+v", last)
			}
		}()
		eventually(t, what, func() bool { m, _ := s.models(); last = m["sim"]; return ok(last) })
	}
	put(cluster.Model{
		Aliases: []string{"gpt-4o"}, Pools: map[cluster.Role][]string{"both": {"sim-1"}},
		Policy: json.RawMessage(`{"mode":"least_loaded","max_queue":3}`), Tokenizer: "/nowhere",
	})
	row("all settings", func(m modelRow) bool {
		return fmt.Sprintf("%v %v %s", m.Aliases, m.Nodes, m.Mode) == "[gpt-4o] [sim-1] least_loaded" &&
			strings.Contains(m.TokenizerError, "/nowhere/tokenizer.json")
	})
	if r := s.chat(asking("gpt-4o", "hello")); r.status != 200 || r.node() != "sim-1" {
		t.Errorf("%v", r)
	}
	capped := func() float64 { return s.metrics().sum("cgn_router_model_max_queue", `model="sim"`) }
	if got := capped(); got != 3 {
		t.Errorf("the model's cap is %v", got)
	}
	if n := s.log.count("a model's tokenizer cannot be used"); n != 1 {
		t.Errorf("%d log lines about the tokenizer", n)
	}
	exact := func() float64 { return s.metrics().sum("cgn_router_tokenised_total", `result="exact"`) }
	if exact() != 0 {
		t.Error("a prompt was tokenised")
	}
	dir := modelFiles(t, chatML)
	put(cluster.Model{Tokenizer: dir})
	row("no alias, and the tokenizer", func(m modelRow) bool {
		return len(m.Aliases) == 0 && len(m.Nodes) == 2 && m.Mode == "" && m.TokenizerError == "" && capped() == 4096
	})
	eventually(t, "prompts are tokenised", func() bool {
		s.chat(chatBody("hello", plain))
		return exact() > 0
	})
	put(cluster.Model{Tokenizer: "/nowhere"})
	row("the tokenizer before stays", func(m modelRow) bool { return m.TokenizerError != "" })
	before := exact()
	if s.chat(chatBody("hello", plain)); exact() == before {
		t.Error("the prompt was not tokenised")
	}
	if _, err := store.RemoveModel(t.Context(), "sim"); err != nil {
		t.Fatal(err)
	}
	row("no settings", func(m modelRow) bool { return m.TokenizerError == "" })
	before = exact()
	if s.chat(chatBody("hello", plain)); exact() != before {
		t.Error("the prompt was tokenised without a tokenizer")
	}
}

// TestModelsAreCheckedTogether checks that [[model]] tables that contradict each other are refused.
func TestModelsAreCheckedTogether(t *testing.T) {
	for want, models := range map[string][]router.ModelConfig{
		`model[1].aliases: b: "gpt" is an alias of a already`: {{Name: "a", Aliases: []string{"gpt"}},
			{Name: "b", Aliases: []string{"x", "gpt"}}},
		`model[0].aliases: a: "gpt" is an alias of a already`: {{Name: "a", Aliases: []string{"gpt", "gpt"}}},
		"model[1].base: y: x is an adapter itself, of sim":    {{Name: "x", Base: "sim"}, {Name: "y", Base: "x"}},
		"model[0].base: x: sim is an adapter itself, of x":    {{Name: "x", Base: "sim"}, {Name: "sim", Base: "x"}},
		"model[1].base: y: ax is an adapter itself, of sim": {{Name: "x", Base: "sim", Aliases: []string{"ax"}},
			{Name: "y", Base: "ax"}},
		"model[0].cascade: a: s has a cascade itself; name models that have none": {
			{Name: "a", Cascade: []string{"s", "big"}},
			{Name: "b", Aliases: []string{"s"}, Cascade: []string{"b", "big"}}},
		"model[0].cascade: a: s is an alias of b, so the chain names that model twice": {
			{Name: "a", Cascade: []string{"b", "s"}}, {Name: "b", Aliases: []string{"s"}}},
		"": {{Name: "x", Base: "sim", Aliases: []string{"ax"}}, {Name: "sim", Aliases: []string{"s"}},
			{Name: "y", Base: "s"}, {Name: "c", Aliases: []string{"ac"}, Cascade: []string{"ac", "sim"}}},
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends, c.Models = []string{"http://127.0.0.1:8001"}, models
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestModelSettingsAreChecked checks that a mistake in [[model]] names its field.
func TestModelSettingsAreChecked(t *testing.T) {
	for want, m := range map[string]router.ModelConfig{
		"model[0].policy: ":                        {Policy: `{"mode":"none such"}`},
		"cgn-ctl model set NAME --policy FILE":     {Policy: `{"models":{}}`},
		"model[0]: m: policy is no JSON object":    {Policy: `[]`},
		`model[0]: m: pool "boss" is none of`:      {Pools: map[string][]string{"boss": {"a"}}},
		"node a is in the pools decode and both":   {Pools: map[string][]string{"both": {"a"}, "decode": {"a"}}},
		"model[0]: m: base is the model itself":    {Base: "m"},
		"model[0]: m: aliases are empty":           {Aliases: []string{""}},
		"adapter_load_s 7200 is not in 0..3600":    {AdapterLoad: 7200e9},
		"model[0].chat_template: needs model[0].t": {ChatTemplate: "x"},
	} {
		c := settings(t, &logged{t: t})
		m.Name, c.Router.Backends = "m", []string{"http://127.0.0.1:8001"}
		c.Models = []router.ModelConfig{m}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
