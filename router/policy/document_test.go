package policy

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	want := *Default()
	want.Score.Weights = Weights{KV: 0.6, Load: 0.2, Power: 0, Capacity: 0.2, Pending: 0.15}
	want.MaxQueue, want.TTFTSLOms = 256, 800
	for _, doc := range []string{
		`{"kv":0.6,"load":0.2,"power":0,"capacity":0.2,"max_queue":256,"ttft_slo_ms":800}`,
		`{"weights":{"kv":0.6,"load":0.2,"power":0,"capacity":0.2},"max_queue":256,"ttft_slo_ms":800}`,
		` {"mode":"score","epsilon":0.01,"ttft_slo_ms":8e2,"max_queue":256,"weights":{"capacity":0.2,"power":0,"load":0.2,"kv":6e-1}} `,
	} {
		p, err := Parse([]byte(doc))
		if err != nil || *p != want {
			t.Errorf("%s: %+v, %v", doc, p, err)
		}
	}
	p, err := Parse([]byte(`{}`))
	if err != nil || *p != *Default() {
		t.Errorf("{}: %+v, %v", p, err)
	}
	p, err = Parse([]byte(`{"mode":"power_of_two","weights":{"kv":1}}`))
	if err != nil || p.Mode != PowerOfTwo || p.Score.Weights.KV != 1 || p.Score.Weights.Load != 0.25 {
		t.Errorf("partial: %+v, %v", p, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for doc, want := range map[string]string{
		``:                    "not a JSON object",
		`null`:                "not a JSON object",
		`[1]`:                 "not a JSON object",
		`{"kv":0.5`:           "malformed JSON",
		`{"kv":0.5,}`:         "malformed JSON",
		`{"kv":NaN}`:          "malformed JSON",
		`{"kv":0.5} x`:        "unexpected data after the object",
		`{"kv":0.5,"kv":0.6}`: "kv: given twice",
		`{"kw":0.5}`: `kw: unknown key; there are mode, weights, tiers, epsilon, max_share, max_queue, ttft_slo_ms, ` +
			`run_delay_ms, retransmit_pct, kv, load, power, capacity, pending`,
		`{"kv":-1}`:             `policy: kv: -1 is refused`,
		`{"weights":{"kv":-1}}`: `policy: weights.kv: -1 is refused`,
		`{"weights":{"lod":0.5}}`: `weights.lod: unknown key; ` +
			`there are kv, load, power, capacity, pending`,
		`{"weights":[0.5]}`:             "weights: not a JSON object is refused, allowed: an object of kv",
		`{"weights":{"kv":1},"load":1}`: "load: a weight both inside and outside of weights",
		`{"weights":{"kv":1,"kv":1}}`:   "kv: given twice",
		`{"kv":-0.1}`:                   "kv: -0.1 is refused, allowed: 0 to 1",
		`{"kv":55}`:                     "kv: 55 is refused, allowed: 0 to 1",
		`{"kv":"0.5"}`:                  `kv: "0.5" is refused, allowed: a number from 0 to 1`,
		`{"kv":null}`:                   "kv: null is refused",
		`{"kv":1e999}`:                  "kv: 1e999 is refused",
		`{"epsilon":1.5}`:               "epsilon: 1.5 is refused",
		`{"mode":"scores"}`:             `mode: "scores" is refused, allowed: score, round_robin`,
		`{"mode":3}`:                    "mode:",
		`{"weights":{"pending":1.5}}`:   "weights.pending: 1.5 is refused, allowed: 0 to 1",
		`{"pending":"1"}`:               `pending: "1" is refused, allowed: a number from 0 to 1`,
		`{"max_share":0.5}`:             "max_share: 0.5 is refused, allowed: 0, or 1 to 100",
		`{"max_share":101}`:             "max_share: 101 is refused, allowed: 0, or 1 to 100",
		`{"max_share":null}`:            "max_share: null is refused, allowed: 0, or 1 to 100",
		`{"max_queue":1.5}`:             "max_queue: 1.5 is refused, allowed: a whole number from 0 to 1048576",
		`{"max_queue":-1}`:              "max_queue: -1 is refused",
		`{"max_queue":1e30}`:            "max_queue: 1e30 is refused",
		`{"ttft_slo_ms":999999999999}`:  "ttft_slo_ms: 999999999999 is refused",
		`{"kv":0,"load":0,"power":0,"capacity":0}`: "weights: all 0 is refused, " +
			"allowed: one of kv, load, power and capacity above 0",
		`{"kv":"` + strings.Repeat("x", documentMax) + `"}`: "at most 65536 are read",
	} {
		p, err := Parse([]byte(doc))
		if err == nil || p != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", doc, err, want)
		}
	}
}

func TestParseReportsEveryProblem(t *testing.T) {
	_, err := Parse([]byte(`{"mode":"scor","weights":{"kv":"a","lod":1},"max_queue":-2}`))
	for _, want := range []string{"mode", "weights.kv", "weights.lod", "max_queue"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing about %s", err, want)
		}
	}
	_, err = Parse([]byte(`{"kv":7,"load":"x","epsilon":-1}`))
	for _, want := range []string{"kv: 7", `load: "x"`, "epsilon: -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing about %s", err, want)
		}
	}
	var field *FieldError
	if !errors.As(err, &field) {
		t.Error("no FieldError in it")
	}
}

func TestValidateKnowsNaN(t *testing.T) {
	p := Default()
	p.Score.Weights.Power, p.Score.Epsilon, p.Mode = math.NaN(), math.Inf(1), 99
	err := p.Validate()
	for _, want := range []string{"weights.power: NaN", "epsilon: +Inf", "mode: 99"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing about %s", err, want)
		}
	}
}

func TestPolicySurvivesItsDocument(t *testing.T) {
	p := &Policy{Mode: LeastLoaded, MaxQueue: 7, TTFTSLOms: 9, Score: ScoreSettings{
		Weights: Weights{KV: 0.1, Load: 0.2, Power: 0.3, Capacity: 0.4, Pending: 0.6}, Epsilon: 0.05, MaxShare: 3}}
	doc, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(doc)
	if err != nil || *back != *p {
		t.Errorf("%s: %+v, %v", doc, back, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mode":"score","weights":{"kv":0.5},"max_queue":1}`))
	f.Add([]byte(`{"kv":0.5,"load":1e-300}`))
	f.Add([]byte(`{"weights":{"kv":{}},"epsilon":[[[]]]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := Parse(doc)
		if (p == nil) == (err == nil) {
			t.Fatal("neither a policy nor an error, or both")
		}
		if p != nil && p.Validate() != nil {
			t.Fatal("an invalid policy was taken")
		}
	})
}
