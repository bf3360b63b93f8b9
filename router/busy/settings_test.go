package busy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func text(t Thresholds) string {
	b, _ := json.Marshal(DocumentFor("", t))
	return "{" + strings.TrimPrefix(string(b), `{"model":"",`)
}

// TestSettings checks which of the three sources of a limit counts.
func TestSettings(t *testing.T) {
	var s Settings
	want := func(model, doc string) {
		t.Helper()
		got := "none"
		if in := s.Of(model); in != nil {
			got = text(*in)
		}
		if got != doc {
			t.Errorf("%s has %s, want %s", model, got, doc)
		}
	}
	want("a", "none")
	if got := s.Set("a", Thresholds{}); !got.IsZero() || s.table.Load() != nil {
		t.Errorf("reading has set %s", text(got))
	}
	s.SetPolicy(Thresholds{})
	if s.SetModels(map[string]Thresholds{"a": {}}); s.table.Load() != nil {
		t.Error("policies without thresholds make a table")
	}
	s.SetPolicy(Thresholds{DecodeBlocks: new(0.9)})
	want("a", "none")
	s.SetModels(map[string]Thresholds{"a": {PrefillTokens: new(100)}})
	want("a", `{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":100}`)
	want("b", `{"active_decode_blocks_threshold":0.9,"active_prefill_tokens_threshold":null}`)
	if got := text(s.Set("a", Thresholds{PrefillTokens: new(7)})); got !=
		`{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7}` {
		t.Errorf("set %s", got)
	}
	s.Set("a", Thresholds{PrefillFraction: new(1.5)})
	s.SetPolicy(Thresholds{DecodeBlocks: new(0.8)})
	s.SetModels(map[string]Thresholds{
		"a": {PrefillTokens: new(200), DecodeBlocks: new(0.7)}, "c": {},
	})
	want("a", `{"active_decode_blocks_threshold":0.7,"active_prefill_tokens_threshold":7,`+
		`"active_prefill_tokens_threshold_frac":1.5}`)
	want("b", `{"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":null}`)
	want("c", "none")
	s.Set("b", Thresholds{PrefillTokens: new(9)})
	want("b", `{"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":9}`)
	s.SetModels(nil)
	want("c", `{"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":null}`)
	s.SetPolicy(Thresholds{})
	want("a", `{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7,`+
		`"active_prefill_tokens_threshold_frac":1.5}`)
	want("b", `{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":9}`)
	want("c", "none")
	var none *Settings
	if none.Of("a") != nil {
		t.Error("no settings have a threshold")
	}
	if n := testing.AllocsPerRun(100, func() { s.Of("a") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	var empty Settings
	empty.Set("a", Thresholds{DecodeBlocks: new(0.5)})
	empty.SetPolicy(Thresholds{})
	if empty.Of("b") != nil || empty.Of("a") == nil {
		t.Error("a threshold of one model counts for another")
	}
}

// parse reads thresholds without the name of a model.
func parse(doc []byte) (t Thresholds, err error) {
	members, err := membersOf(doc)
	if err != nil {
		return t, err
	}
	return t, t.read(members)
}

func TestParse(t *testing.T) {
	for doc, want := range map[string]string{
		`{}`: `{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null}`,
		`{"active_decode_blocks_threshold":1,"active_prefill_tokens_threshold":1e3}`: `{"active_decode_blocks_threshold` +
			`":1,"active_prefill_tokens_threshold":1000}`,
		`{"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":0.5}`: `{"active_decode_` +
			`blocks_threshold":null,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":0.5}`,
	} {
		if got, err := parse([]byte(doc)); err != nil || text(got) != want {
			t.Errorf("%s: %s, %v", doc, text(got), err)
		}
	}
	for doc, want := range map[string]string{
		``:      "one JSON object",
		`null`:  "one JSON object",
		`[]`:    "one JSON object",
		`{} {}`: "one JSON object",
		`{"active_decode_blocks_threshold":1.01}`:                                 "active_decode_blocks_threshold: 1.01 is refused; write a share",
		`{"active_decode_blocks_threshold":-0.1}`:                                 "active_decode_blocks_threshold: ",
		`{"active_decode_blocks_threshold":"0.5"}`:                                `active_decode_blocks_threshold: "0.5" is refused`,
		`{"active_prefill_tokens_threshold":1.5}`:                                 "active_prefill_tokens_threshold: 1.5 is refused; write a whole",
		`{"active_prefill_tokens_threshold":-1}`:                                  "active_prefill_tokens_threshold: ",
		`{"active_prefill_tokens_threshold":1e300}`:                               "active_prefill_tokens_threshold: ",
		`{"active_prefill_tokens_threshold":1e999}`:                               "active_prefill_tokens_threshold: ",
		`{"active_prefill_tokens_threshold_frac":-0.5}`:                           "active_prefill_tokens_threshold_frac: ",
		`{"active_decode_block_threshold":0.5}`:                                   "active_decode_block_threshold: unknown; there are active_decode",
		`{"model":"m"}`:                                                           "model: unknown",
		`{"active_prefill_token_threshold":5}`:                                    "did you mean active_prefill_tokens_threshold?",
		` `:                                                                       "it is empty",
		`{"active_decode_blocks_threshold":1`:                                     "it is cut short",
		`{"active_decode_blocks_threshold":}`:                                     "malformed at byte",
		`{"active_decode_blocks_threshold":1,"active_decode_blocks_threshold":1}`: "active_decode_blocks_threshold: appears twice",
	} {
		if _, err := parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		} else if strings.Contains(err.Error(), "json:") {
			t.Errorf("%s: the error is that of a package: %v", doc, err)
		}
	}
}

// TestUnset checks that the policy's limits count again once those of a model are removed.
func TestUnset(t *testing.T) {
	s := new(Settings)
	s.SetPolicy(Thresholds{DecodeBlocks: new(0.5)})
	s.Set("m", Thresholds{DecodeBlocks: new(0.9), PrefillTokens: new(7)})
	for range 2 {
		if left := s.Unset("m"); *left.DecodeBlocks != 0.5 || left.PrefillTokens != nil || *s.Of("m") != left {
			t.Errorf("%s", text(left))
		}
	}
}

func TestParseFor(t *testing.T) {
	model, limits, err := ParseFor([]byte(`{"model":"m","active_decode_blocks_threshold":0.85}`))
	if err != nil || model != "m" || *limits.DecodeBlocks != 0.85 || limits.PrefillTokens != nil {
		t.Errorf("%q, %s, %v", model, text(limits), err)
	}
	for _, doc := range []string{`{}`, `{"model":""}`, `{"model":7}`, `{"model":null}`} {
		_, _, err := ParseFor([]byte(doc))
		if field, ok := errors.AsType[*FieldError](err); !ok || field.Field != "model" {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":1000}`))
	f.Add([]byte(`{"active_prefill_tokens_threshold_frac":0.5}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		limits, err := parse(doc)
		if err != nil {
			return
		}
		again, err := parse([]byte(text(limits)))
		if err != nil || text(again) != text(limits) {
			t.Errorf("%s reads as %s, %v", text(limits), text(again), err)
		}
	})
}
