package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestModelsAreChecked(t *testing.T) {
	for value, want := range map[string]string{
		`{"base":"m"}`: "base is the model itself",
		`{"base":"` + strings.Repeat("x", 513) + `"}`:                "base has 513 bytes",
		`{"chat_template":"/t"}`:                                     "chat_template needs a tokenizer",
		`{"chat_template":"/t","tokenizer":"none"}`:                  "chat_template needs a tokenizer",
		`{"tokenizer":"` + strings.Repeat("x", 5000) + `"}`:          "more than 4096 bytes",
		`{"pools":{"boss":["a"]}}`:                                   `pool "boss" is none of`,
		`{"pools":{"":["a"]}}`:                                       `pool "" is none of`,
		`{"pools":{"both":["a b"]}}`:                                 "pool both: node id",
		`{"pools":{"both":["a","a"]}}`:                               "node a is twice in the pool both; leave one out",
		`{"pools":{"both":["a"],"prefill":["a"]}}`:                   "node a is in the pools prefill and both",
		`{"policy":[1]}`:                                             "policy is no JSON object",
		`{"policy":"x"}`:                                             "policy is no JSON object",
		`{"adapter_load_s":-1}`:                                      "adapter_load_s -1 is not in 0..3600",
		`{"adapter_load_s":1e9}`:                                     "adapter_load_s",
		`{"aliases":[""]}`:                                           "aliases are empty",
		`{"cascade":["a"]}`:                                          "cascade names 1 models; name 2 to 8",
		`{"cascade":["a","a"]}`:                                      "cascade names a twice",
		`{"cascade":["a",""]}`:                                       "cascade names a model that is empty",
		`{"cascade_direct":"a"}`:                                     "need a cascade",
		`{"cascade":["a","b"],"cascade_direct":"c"}`:                 "cascade_direct c is not in the cascade",
		`{"cascade":["a","b"],"cascade_thresholds":[1]}`:             "has 1, which is not in -100..0",
		`{"cascade":["a","b","c","d"],"cascade_thresholds":[-1,-1]}`: "has 2 values; give one, or 3",
	} {
		if _, err := ParseModel("m", []byte(value)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", value, err, want)
		}
	}
	for _, value := range []string{
		`{"policy":null}`, `{"policy": {"mode":"cost"},"other":["x"]}`, `{"pools":{"both":[]},"tokenizer":"none"}`,
		`{"base":"b","adapter_load_s":0.5,"tokenizer":"/d","chat_template":"/t"}`,
		`{"cascade":["a","m","b"],"cascade_thresholds":[-0.5,0],"cascade_direct":"m"}`,
	} {
		if _, err := ParseModel("m", []byte(value)); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestOver: each setting that is left out comes from below. A template comes only with its
// tokenizer.
func TestOver(t *testing.T) {
	full := &Model{
		Aliases: []string{"a"}, Base: "b", Tokenizer: "/d", ChatTemplate: "/t",
		Pools: map[Role][]string{RoleBoth: {"n"}}, Policy: json.RawMessage(`{}`), AdapterLoadS: 2,
		Cascade: Cascade{Chain: []string{"a", "b"}, Thresholds: []float64{-1}, Direct: "a"},
	}
	text := func(m *Model) string { b, _ := json.Marshal(m); return string(b) }
	if got := (&Model{}).Over(full); text(got) != text(full) {
		t.Errorf("nothing over all: %s", text(got))
	}
	if got := full.Over(&Model{Base: "x", Tokenizer: "/x", AdapterLoadS: 9}); text(got) != text(full) {
		t.Errorf("all over some: %s", text(got))
	}
	if got := (&Model{Tokenizer: "/other"}).Over(full); got.ChatTemplate != "" || got.Base != "b" {
		t.Errorf("another tokenizer: %s", text(got))
	}
	if got := (&Model{Cascade: Cascade{Chain: []string{"c", "d"}}}).Over(full); got.Direct != "" ||
		got.Thresholds != nil {
		t.Errorf("another chain: %s", text(got))
	}
	if got := (*Model)(nil).Over(full); got != full {
		t.Errorf("nil over all: %s", text(got))
	}
	if got := full.Over(nil); got != full {
		t.Errorf("all over nil: %s", text(got))
	}
}

// TestEditModel: an edit keeps what others have written, members that Model does not have too, and
// a refused edit changes nothing.
func TestEditModel(t *testing.T) {
	e := startEtcd(t)
	c, ctx := e.client(), t.Context()
	must(t, c.put(ctx, ModelKey("org/m"), []byte(`{"aliases":["a"],"other":["small"],"tokenizer":"none"}`)))
	tries := 0
	m, err := c.EditModel(ctx, "org/m", func(m *Model) error {
		if tries++; tries == 1 { // another one is faster
			must(t, c.put(ctx, ModelKey("org/m"), []byte(`{"aliases":["b"],"other":["tiny"],"tokenizer":"none"}`)))
		}
		m.Aliases, m.Tokenizer = append(m.Aliases, "c"), ""
		return nil
	})
	if err != nil || tries != 2 || fmt.Sprint(m.Aliases) != "[b c]" {
		t.Fatalf("%d tries, %+v, %v", tries, m, err)
	}
	read := func() string {
		resp, err := c.get(ctx, ModelKey("org/m"))
		must(t, err)
		return string(resp.Kvs[0].Value)
	}
	const want = `{"aliases":["b","c"],"other":["tiny"]}`
	if got := read(); got != want {
		t.Errorf("stored %s", got)
	}
	no := errors.New("no")
	if _, err := c.EditModel(ctx, "org/m", func(*Model) error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
	if _, err := c.EditModel(ctx, "org/m", func(m *Model) error { m.Base = "org/m"; return nil }); err == nil ||
		!strings.Contains(err.Error(), "base is the model itself") {
		t.Errorf("an invalid edit: %v", err)
	}
	if got := read(); got != want {
		t.Errorf("stored %s after refused edits", got)
	}
	must(t, c.put(ctx, ModelKey("z"), []byte(`[`)))
	if _, err := c.EditModel(ctx, "z", func(*Model) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "cgn-ctl model rm") {
		t.Errorf("a value that is no model: %v", err)
	}
	all, err := c.Models(ctx)
	must(t, err)
	if len(all) != 2 || all[0].Name != "org/m" || all[0].Model == nil || all[1].Err == nil || all[1].Model != nil {
		t.Errorf("listed %+v", all)
	}
	for i, there := range []bool{true, false} {
		if existed, err := c.RemoveModel(ctx, "z"); err != nil || existed != there {
			t.Errorf("removal %d: %v %v", i, existed, err)
		}
	}
}

func FuzzParseModel(f *testing.F) {
	f.Add([]byte(`{"aliases":["a"],"base":"b","pools":{"both":["n"]},"policy":{"mode":"score"},"adapter_load_s":1,"cascade":["a","b"],"cascade_thresholds":[-1]}`))
	f.Add([]byte(`{"policy":" `))
	f.Fuzz(func(t *testing.T, value []byte) {
		m, err := ParseModel("m", value)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseModel("m", again); err != nil {
			t.Fatalf("%s, written as %s, is refused: %v", value, again, err)
		}
	})
}
