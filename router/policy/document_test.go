package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	want := Default()
	want.Score.Weights = Weights{KV: 0.6, Load: 0.2, Power: 0, Capacity: 0.2, Pending: 0.18, Adapter: 0.1}
	want.Mode, want.MaxQueue, want.TTFTSloMs = Score, 256, 800
	for _, doc := range []string{
		`{"kv":0.6,"load":0.2,"power":0,"capacity":0.2,"max_queue":256,"ttft_slo_ms":800}`,
		`{"weights":{"kv":0.6,"load":0.2,"power":0,"capacity":0.2},"max_queue":256,"ttft_slo_ms":800}`,
		`{"score":{"weights":{"kv":0.6,"load":0.2,"power":0,"capacity":0.2}},"max_queue":256,"ttft_slo_ms":800}`,
		` {"mode":"score","epsilon":0.01,"ttft_slo_ms":8e2,"max_queue":256,"weights":{"capacity":0.2,"power":0,"load":0.2,` +
			`"kv":6e-1}} `,
	} {
		p, err := Parse([]byte(doc))
		if err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, %v", doc, p, err)
		}
	}
	p, err := Parse([]byte(`{}`))
	if err != nil || !reflect.DeepEqual(p, Default()) {
		t.Errorf("{}: %+v, %v", p, err)
	}
	p, err = Parse([]byte(`{"mode":"power_of_two","weights":{"kv":1}}`))
	if err != nil || p.Mode != PowerOfTwo || p.Score.Weights.KV != 1 || p.Score.Weights.Load != 0.25 {
		t.Errorf("partial: %+v, %v", p, err)
	}
}

// TestForms checks that each setting of section score is also read at the top of a document.
func TestForms(t *testing.T) {
	want := Default()
	want.Mode = Score
	want.Score.Epsilon, want.Score.RunDelayMs, want.Score.RetransmitPct = 0.5, 7, 8
	want.Score.Tiers.Host, want.Score.Weights.Pending = 0.5, 0.25
	for _, doc := range []string{
		`{"epsilon":0.5,"run_delay_ms":7,"retransmit_pct":8,"tiers":{"host":0.5},"weights":{"pending":0.25}}`,
		`{"epsilon":0.5,"run_delay_ms":7,"retransmit_pct":8,"tiers":{"host":0.5},"pending":0.25}`,
		`{"score":{"epsilon":0.5,"run_delay_ms":7,"retransmit_pct":8,"tiers":{"host":0.5},` +
			`"weights":{"pending":0.25}}}`,
		`{"epsilon":0.5,"pending":0.25,"score":{"run_delay_ms":7,"retransmit_pct":8,"tiers":{"host":0.5}}}`,
	} {
		if p, err := Parse([]byte(doc)); err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, %v", doc, p, err)
		}
	}
}

// TestSectionsOfModesWithoutSettings checks that each mode may have a section, which is an empty
// object if the mode has no settings.
func TestSectionsOfModesWithoutSettings(t *testing.T) {
	for _, mode := range ModeNames() {
		want := Default()
		want.Mode, _ = ParseMode(mode)
		doc := fmt.Sprintf(`{"mode":%q,%q:{}}`, mode, mode)
		if p, err := Parse([]byte(doc)); err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, %v", doc, p, err)
		}
	}
	for doc, want := range map[string]string{
		`{"mode":"random","random":{"seed":1}}`: "policy: random.seed: mode random has no settings",
		`{"direct":{"kv":1}}`:                   "policy: direct.kv: mode direct has no settings",
		`{"round_robin":{},"round_robin":{}}`:   "round_robin: given twice",
		`{"score":{"random":{}}}`:               "score.random: unknown key",
		`{"least_loaded":null}`: "policy: least_loaded: not a JSON object, allowed: an empty object, because " +
			"mode least_loaded has no settings",
	} {
		if _, err := Parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
}

// TestRetiredSettings checks that a document with a setting of an older version is valid, and that
// the setting is named.
func TestRetiredSettings(t *testing.T) {
	doc := []byte(`{"mode":"predicted","max_share":2,"score":{"max_share":0}}`)
	if p, err := Parse(doc); err != nil || !reflect.DeepEqual(p, Default()) {
		t.Errorf("%+v, %v", p, err)
	}
	if got := Ignored(doc); !slices.Equal(got, []string{"max_share", "score.max_share"}) {
		t.Errorf("ignored: %q", got)
	}
	if got := Ignored([]byte(`{"kv":1}`)); got != nil {
		t.Errorf("ignored: %q", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for doc, want := range map[string]string{
		``:                    "policy: empty, so not a JSON object; {} has every default",
		" \n":                 "policy: empty",
		`null`:                "not a JSON object",
		`[1]`:                 "not a JSON object",
		`{"kv":0.5`:           "malformed JSON",
		`{"kv":0.5,}`:         "malformed JSON",
		`{"kv":NaN}`:          "malformed JSON",
		`{"kv":0.5} x`:        "unexpected bytes after the end of the document",
		`{"kv":0.5,"kv":0.6}`: "policy: kv: given twice",
		`{"kw":0.5}`: `kw: unknown key; there are mode, score, cost, device_aware, predicted, ttft_slo_ms, ` +
			`prefill_load_model, busy, max_queue, weights, tiers, epsilon, run_delay_ms, retransmit_pct, kv, load, power, ` +
			`capacity, pending, adapter; did you mean kv?`,
		`{"disk":1}`:              "; did you mean score.tiers.disk?",
		`{"score":{"kv":1}}`:      "score.kv: unknown key; there are weights, tiers, epsilon",
		`{"score":{"load":1}}`:    "; did you mean score.weights.load?",
		`{"kv":-1}`:               `policy: kv: -1 is refused`,
		`{"weights":{"kv":-1}}`:   `policy: weights.kv: -1 is refused`,
		`{"score":{"epsilon":7}}`: `policy: score.epsilon: 7 is refused, allowed: a number from 0 to 1`,
		`{"weights":{"lod":0.5}}`: `weights.lod: unknown key; ` +
			`there are kv, load, power, capacity, pending, adapter; did you mean load?`,
		`{"weights":[0.5]}`:                           "weights: not a JSON object, allowed: an object of kv",
		`{"score":null}`:                              "score: not a JSON object, allowed: an object of weights",
		`{"weights":{"kv":1},"load":1}`:               "load: a weight both inside and outside of weights; use one form",
		`{"load":1,"score":{"weights":{"kv":1}}}`:     "load: a weight both inside and outside of score.weights",
		`{"score":{"weights":{}},"weights":{"kv":1}}`: "weights: also given as score.weights; use one of them",
		`{"epsilon":0.1,"score":{"epsilon":0.1}}`:     "score.epsilon: also given as epsilon; use one of them",
		`{"weights":{"kv":1,"kv":1}}`:                 "policy: weights.kv: given twice",
		`{"predicted":{"first":12,"first":13}}`:       "policy: predicted.first: given twice",
		`{"kv":-0.1}`:                                 "kv: -0.1 is refused, allowed: a number from 0 to 1",
		`{"kv":55}`:                                   "kv: 55 is refused, allowed: a number from 0 to 1",
		`{"kv":"0.5"}`:                                `kv: "0.5" is refused, allowed: a number from 0 to 1`,
		`{"kv":null}`:                                 "kv: null is refused",
		`{"kv":1e999}`:                                "kv: 1e999 is refused",
		`{"epsilon":1.5}`:                             "epsilon: 1.5 is refused",
		`{"mode":"scores"}`:                           `mode: "scores" is refused, allowed: score, cost (or kv), round_robin`,
		`{"mode":3}`:                                  "mode: 3 is refused, allowed: score",
		`{"mode":null}`:                               "mode: null is refused",
		`{"weights":{"pending":1.5}}`:                 "weights.pending: 1.5 is refused, allowed: a number from 0 to 1",
		`{"pending":"1"}`:                             `pending: "1" is refused, allowed: a number from 0 to 1`,
		`{"max_queue":1.5}`:                           "max_queue: 1.5 is refused, allowed: a whole number from 0 to 1048576",
		`{"max_queue":-1}`:                            "max_queue: -1 is refused",
		`{"max_queue":1e30}`:                          "max_queue: 1e30 is refused",
		`{"kv":0,"load":0,"power":0,"capacity":0}`: "weights: all 0 is refused, " +
			"allowed: one of kv, load, power and capacity above 0",
		`{"kv":"` + strings.Repeat("x", documentMax) + `"}`: "at most 65536 are read",
		`{"kv":"` + strings.Repeat("x", 1000) + `"}`:        `kv: "` + strings.Repeat("x", 63) + "... is refused",
	} {
		refused(t, doc, want)
	}
}

// TestFaultsOfJSONAreLocated checks that an error about a document that is no JSON has the place of
// the fault in the whole document, in sections too. Bytes count from 0.
func TestFaultsOfJSONAreLocated(t *testing.T) {
	for doc, want := range map[string]string{
		`{"predicted":{"first":1,"wait":,}}`: "predicted: malformed JSON at byte 31 of the document, in line 1",
		"{\"mode\":\"score\",\n\n\"score\":{\"weights\":{\"kv\" 1}}}": "score: malformed JSON at byte 43 of the " +
			"document, in line 3",
		`{"prefill_load_model":{"table":[{"tokens":1},]}}`: "at byte 45 of the document",
		`{"kv":0.5`:    "malformed JSON at byte 9 of the document",
		`{"kv":0.5,}`:  "malformed JSON at byte 10 of the document",
		`{"kv":0.5} x`: "malformed JSON at byte 11 of the document",
	} {
		refused(t, doc, want)
	}
}

func TestSectionsAreRefused(t *testing.T) {
	for doc, want := range map[string]string{
		`{"temperature":0.5}`: "temperature: unknown key; there are mode, score, cost",
		`{"block_tokens":16}`: "; did you mean cost.block_tokens?",
		`{"cost":{"overlap_score_credits":1}}`: "cost.overlap_score_credits: unknown key; there are block_tokens, " +
			"overlap_score_credit, overlap_score_credit_decay, host_cache_hit_weight, disk_cache_hit_weight, " +
			"shared_cache_multiplier, prefill_load_scale, active_request_weight, temperature, assume_kv_reuse, " +
			"track_prefill_tokens, track_active_blocks, track_output_blocks; did you mean overlap_score_credit?",
		`{"cost":{"block_tokens":0}}`:            "cost.block_tokens: 0 is refused, allowed: a whole number from 1 to 65536",
		`{"cost":{"host_cache_hit_weight":1.5}}`: "cost.host_cache_hit_weight: 1.5 is refused, allowed: a number from 0 to 1",
		`{"cost":{"temperature":-1}}`:            "cost.temperature: -1 is refused, allowed: a number from 0 to 1000000",
		`{"cost":{"assume_kv_reuse":1}}`:         "cost.assume_kv_reuse: 1 is refused, allowed: true or false",
		`{"cost":{"assume_kv_reuse":null}}`:      "cost.assume_kv_reuse: null is refused",
		`{"cost":{"prefill_load_scale":1,"overlap_score_weight":1}}`: "cost.overlap_score_weight: also given as " +
			"cost.prefill_load_scale; use one of them",
		`{"cost":{"track_output_blocks":true,"track_active_blocks":false}}`: "cost.track_output_blocks: true is refused, " +
			"allowed: false, or true with cost.track_active_blocks",
		`{"device_aware":{"ratio":0}}`:  "device_aware.ratio: 0 is refused, allowed: a number from 1 to 1000000",
		`{"predicted":{"first":-1}}`:    "predicted.first: -1 is refused, allowed: a number from 0 to 1000",
		`{"predicted":{"wait":1001}}`:   "predicted.wait: 1001 is refused, allowed: a number from 0 to 1000",
		`{"predicted":{"others":-0.1}}`: "predicted.others: -0.1 is refused",
		`{"predicted":{"burst":1e9}}`:   "predicted.burst: 1e9 is refused",
		`{"predicted":{"first":0,"wait":0,"others":0,"burst":0}}`: "predicted: first and others " +
			"both 0 is refused, allowed: one of them above 0, such as first at its default, 12",
		`{"mode":"predicted","predicted":{"first":0,"others":0,"burst":0}}`: "predicted: first and others both 0",
		`{"predicted":{"learn":1}}`:                                         "predicted.learn: 1 is refused, allowed: true or false",
		`{"predicted":{"explore":0}}`:                                       "predicted.explore: 0 is refused, allowed: true or false",
		`{"predicted":{"explor":true}}`: "predicted.explor: unknown key; there are first, wait, others, burst, learn, " +
			"explore; did you mean explore?",
		`{"ttft_slo_ms":-1}`:          "ttft_slo_ms: -1 is refused, allowed: a number from 0 to 3600000",
		`{"ttft_slo":1}`:              "ttft_slo: unknown key; there are mode, score, cost",
		`{"device_aware":{"rati":1}}`: "device_aware.rati: unknown key; there are ratio; did you mean ratio?",
	} {
		refused(t, doc, want)
	}
}

// TestOneWeightIsEnough checks that mode predicted takes any one of the weights that count alone.
func TestOneWeightIsEnough(t *testing.T) {
	for _, weights := range []string{`"first":1,"others":0,"burst":0`, `"first":0,"others":1,"burst":0`} {
		if _, err := Parse([]byte(`{"predicted":{"wait":0,` + weights + `}}`)); err != nil {
			t.Error(err)
		}
	}
}

// TestModelsAreRefused checks that the policy of a model in the fleet's document is refused, and
// that the error says where it belongs.
func TestModelsAreRefused(t *testing.T) {
	const want = "models: a document is one policy, and a model's own is among the model's settings; give it with " +
		"`cgn-ctl model set NAME --policy FILE`, or as policy of [[model]]"
	for _, doc := range []string{`{"models":{"m":{"mode":"cost"}}}`, `{"mode":"random","models":{}}`, `{"models":7}`} {
		refused(t, doc, want)
	}
	refused(t, `{"cost":{"models":{}}}`, "cost.models: unknown key; there are block_tokens")
}

// refused checks that a document is refused with one error.
func refused(t *testing.T, doc, want string) {
	t.Helper()
	p, err := Parse([]byte(doc))
	if err == nil || p != nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%.80s: got %v, want %q", doc, err, want)
	} else if strings.Contains(err.Error(), "\n") {
		t.Errorf("%.80s: more than one error: %v", doc, err)
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

// randomPolicy returns a valid policy, with each setting at a random allowed value.
func randomPolicy(rng *rand.Rand) *Policy {
	p := Default()
	walk("", reflect.ValueOf(p).Elem(), func(_ string, f reflect.StructField, v reflect.Value) {
		low, high, _ := strings.Cut(f.Tag.Get("range"), "..")
		switch v.Kind() {
		case reflect.Invalid: // unset
		case reflect.Bool:
			v.SetBool(rng.IntN(2) == 0)
		case reflect.Uint8:
			v.SetUint(rng.Uint64N(uint64(len(modes))))
		case reflect.Int:
			v.SetInt(int64(parsed(low)) + rng.Int64N(int64(parsed(high)-parsed(low))))
		case reflect.String:
			v.SetString(words(f)[rng.IntN(len(words(f)))])
		default:
			v.SetFloat(parsed(low) + rng.Float64()*(parsed(high)-parsed(low)))
		}
	})
	if p.PrefillLoadModel.Mode == Modelled || rng.IntN(2) == 0 {
		p.PrefillLoadModel.Table = randomTable(rng, 1+rng.IntN(64))
	}
	if rng.IntN(2) == 0 {
		p.Busy.DecodeBlocks, p.Busy.PrefillTokens = new(rng.Float64()), new(rng.IntN(1<<40))
	}
	if rng.IntN(2) == 0 {
		p.Busy.PrefillFraction = new(2 * rng.Float64())
	}
	p.Cost.TrackOutputBlocks = p.Cost.TrackOutputBlocks && p.Cost.TrackActiveBlocks
	return p
}

func TestPolicySurvivesItsDocument(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 50 {
		p := randomPolicy(rng)
		doc, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(doc)
		if err != nil || !reflect.DeepEqual(back, p) {
			t.Errorf("%s: %+v, %v", doc, back, err)
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestModeNames checks the names of modes, with those of other routers.
func TestModeNames(t *testing.T) {
	for name, want := range map[string]Mode{
		"kv": Cost, "cost": Cost, "score": Score, "round-robin": RoundRobin, "power-of-two": PowerOfTwo,
		"least-loaded": LeastLoaded, "direct": Direct, "random": Random, "device-aware-weighted": DeviceAware,
		"device-aware": DeviceAware, "device_aware_weighted": DeviceAware,
	} {
		p, err := Parse([]byte(`{"mode":"` + name + `"}`))
		if err != nil || p.Mode != want {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	for i, name := range ModeNames() {
		if m, err := ParseMode(name); err != nil || m != Mode(i) || m.String() != name {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	if _, err := ParseMode("kv-router"); err == nil || !strings.Contains(err.Error(), `mode: "kv-router" is refused`) {
		t.Error(err)
	}
}

// TestOverlapScoreWeight checks the older name of prefill_load_scale.
func TestOverlapScoreWeight(t *testing.T) {
	for doc, want := range map[string][2]float64{ // scale and credit
		`{}`:                         {1, 1},
		`{"overlap_score_weight":2}`: {2, 1},
		`{"overlap_score_weight":0}`: {0, 0},
		`{"prefill_load_scale":0}`:   {0, 1},
		`{"overlap_score_weight":0,"overlap_score_credit":0.5}`: {0, 0},
	} {
		p, err := Parse([]byte(`{"cost":` + doc + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if c := p.Cost; c.PrefillLoadScale != want[0] || c.OverlapScoreCredit != want[1] {
			t.Errorf("%s: %+v", doc, c)
		}
	}
}

// TestSettings checks that only the settings with an effect are listed.
func TestSettings(t *testing.T) {
	for doc, want := range map[string]string{
		`{"mode":"random","max_queue":7}`: "mode=random prefill_load_model.mode=none max_queue=7",
		`{"mode":"device_aware","kv":0.75}`: "mode=device_aware device_aware.ratio=8 prefill_load_model.mode=none " +
			"max_queue=0",
		`{"mode":"random","cost":{"track_output_blocks":true,"temperature":1}}`: "mode=random " +
			"cost.track_output_blocks=true prefill_load_model.mode=none max_queue=0",
		`{"score":{"tiers":{"host":0.5}}}`: "mode=predicted score.tiers.host=0.5 score.tiers.disk=0.25 " +
			"predicted.first=12 predicted.wait=1 predicted.others=1 predicted.burst=1 " +
			"predicted.learn=true predicted.explore=true ttft_slo_ms=0 prefill_load_model.mode=none max_queue=0",
		`{"predicted":{"first":0,"wait":3,"learn":false}}`: "mode=predicted score.tiers.host=0.75 " +
			"score.tiers.disk=0.25 predicted.first=0 predicted.others=1 predicted.burst=1 predicted.learn=false ttft_slo_ms=0 " +
			"prefill_load_model.mode=none max_queue=0",
	} {
		p, err := Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range p.Settings() {
			all = append(all, fmt.Sprintf("%s=%v", s.Name, s.Value))
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s: %s", doc, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mode":"score","weights":{"kv":0.5},"max_queue":1}`))
	f.Add([]byte(`{"kv":0.5,"load":1e-300}`))
	f.Add([]byte(`{"weights":{"kv":{}},"epsilon":[[[]]]}`))
	f.Add([]byte(`{"score":{"tiers":{"host":0.5},"epsilon":0},"mode":"random"}`))
	f.Add([]byte(`{"models":{"a":{"mode":"random"}}}`))
	f.Add([]byte(measured))
	f.Add([]byte(`{"busy":{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null}}`))
	f.Add([]byte(`{"prefill_load_model":{"table":[[],{"tokens":[]},{"ms":{"ms":1}}]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := Parse(doc)
		if (p == nil) == (err == nil) {
			t.Fatal("neither a policy nor an error, or both")
		}
		if p != nil && p.Validate() != nil {
			t.Fatal("an invalid policy was taken")
		}
		if p == nil {
			return
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Parse(text); err != nil || !reflect.DeepEqual(back, p) {
			t.Fatalf("%s reads as %+v, %v", text, back, err)
		}
	})
}

// TestMeantWords checks that an error about a word suggests the nearest one, whatever its case.
func TestMeantWords(t *testing.T) {
	for doc, want := range map[string]string{
		`{"mode":"KV"}`:                               "did you mean kv?",
		`{"mode":"Score"}`:                            "did you mean score?",
		`{"mode":"roundrobin"}`:                       "did you mean round_robin?",
		`{"mode":"power-of-tow"}`:                     "did you mean power_of_two?",
		`{"prefill_load_model":{"mode":"modeled"}}`:   "did you mean modelled?",
		`{"prefill_load_model":{"mode":"something"}}`: "allowed: none, modelled",
	} {
		_, err := Parse([]byte(doc))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", doc, err, want)
		}
	}
}

func TestIdle(t *testing.T) {
	for doc, want := range map[string]string{
		`{}`: "",
		`{"mode":"cost","cost":{"temperature":1},"score":{"epsilon":0.01},"max_queue":3}`: "",
		`{"cost":{"track_prefill_tokens":false}}`:                                         "", // in the load books of every mode
		`{"cost":{"temperature":1},"device_aware":{"ratio":3}}`:                           "cost.temperature device_aware.ratio",
		`{"mode":"predicted","score":{"tiers":{"host":0.5,"disk":0.1},"epsilon":0.5}}`:    "score.epsilon",
		`{"score":{"tiers":{"device":0.5}}}`:                                              "score.tiers.device",
		`{"mode":"score","score":{"tiers":{"device":0.5,"host":0.5,"disk":0.1}}}`:         "",
		`{"mode":"cost","score":{"tiers":{"host":0.5,"disk":0.1}}}`:                       "score.tiers.host score.tiers.disk",
		`{"prefill_load_model":{"table":[{"tokens":1,"cached_tokens":0,"ms":1},{"tokens":2,"cached_tokens":0,"ms":2}]}}`: "" +
			"prefill_load_model.table",
		`{"predicted":{"first":0,"wait":3}}`:                             "predicted.wait",
		`{"predicted":{"first":0,"wait":3},"ttft_slo_ms":500}`:           "", // in the part for lateness
		`{"predicted":{"first":0}}`:                                      "",
		`{"predicted":{"learn":false,"explore":false}}`:                  "predicted.explore",
		`{"predicted":{"explore":false,"wait":3}}`:                       "",
		`{"mode":"cost","predicted":{"first":0,"wait":3,"learn":false}}`: "predicted.first predicted.wait predicted.learn",
	} {
		p, err := Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(p.Idle(), " "); got != want {
			t.Errorf("%s: %q, want %q", doc, got, want)
		}
	}
}

// TestModeOfSettings checks that a document without a mode is for mode score if it has a setting of
// that mode alone, and for the default mode otherwise.
func TestModeOfSettings(t *testing.T) {
	for doc, want := range map[string]Mode{
		`{}`: Predicted, `{"kv":0.5}`: Score, `{"weights":{"load":0.5}}`: Score, `{"score":{"epsilon":0.02}}`: Score,
		`{"score":{}}`: Score, `{"epsilon":0.02}`: Score, `{"cost":{"temperature":1}}`: Predicted,
		`{"max_queue":5,"ttft_slo_ms":500}`: Predicted, `{"mode":"predicted","kv":0.5}`: Predicted,
		`{"score":{"tiers":{"host":0.5}}}`: Predicted, `{"tiers":{"disk":0.5}}`: Predicted,
		`{"score":{"tiers":{}}}`: Predicted, `{"score":{},"tiers":{"host":0.5}}`: Predicted,
		`{"score":{"tiers":{"host":0.5},"epsilon":0.02}}`: Score, `{"kv":0.5,"tiers":{"host":0.5}}`: Score,
		`{"mode":"score","score":{"tiers":{"host":0.5}}}`: Score,
	} {
		if p, err := Parse([]byte(doc)); err != nil || p.Mode != want {
			t.Errorf("%s: %v, %v", doc, p.Mode, err)
		}
	}
}
