package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// measured is a prefill load model with two curves.
const measured = `{"prefill_load_model":{"mode":"modelled","table":[
	{"tokens":500,"cached_tokens":0,"ms":50},
	{"tokens":1000,"cached_tokens":0,"ms":100},
	{"tokens":2000,"cached_tokens":0,"ms":300},
	{"tokens":0,"cached_tokens":4000,"ms":20},
	{"tokens":1000,"cached_tokens":4000,"ms":140}]}}`

func modelOf(t *testing.T, doc string) *PrefillLoadModel {
	t.Helper()
	p, err := Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return &p.PrefillLoadModel
}

// TestExpected compares the model with results by hand.
func TestExpected(t *testing.T) {
	m := modelOf(t, measured)
	for _, c := range []struct {
		tokens, cached int64
		ms             float64
	}{
		{500, 0, 50}, {1000, 0, 100}, {2000, 0, 300}, {1000, 4000, 140}, // measurements
		{250, 0, 25},            // from 0 tokens in 0 ms on
		{750, 0, 75},            // between two points
		{1500, 0, 200},          // between two others
		{3000, 0, 500},          // 0.2 ms per token from the last on
		{500, 4000, 80},         // from 0 tokens in 20 ms on
		{2000, 4000, 260},       // beyond the last point of its curve
		{1000, 2000, 120},       // halfway between the curves
		{500, 1000, 57.5},       // a quarter of the way from 50 to 80
		{1000, 8000, 180},       // beyond the last curve, where 4000 cached tokens take 40 ms
		{2000, 8000, 260},       // the last curve is below the one before it, which is no slope to go on with
		{0, 0, 0}, {-5, 100, 0}, // nothing to compute
		{500, -5, 50},
	} {
		want := time.Duration(math.Round(c.ms * 1e6))
		if got := m.Expected(c.tokens, c.cached); (got - want).Abs() > 1 {
			t.Errorf("%d tokens behind %d take %v, want %v", c.tokens, c.cached, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { m.Expected(1500, 5000) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestExpectedOfSmallTables checks tables of one entry, no model, and durations beyond all bounds.
func TestExpectedOfSmallTables(t *testing.T) {
	table := func(mode, entries string) *PrefillLoadModel {
		return modelOf(t, `{"prefill_load_model":{"mode":"`+mode+`","table":[`+entries+`]}}`)
	}
	rate := table("modelled", `{"tokens":100,"cached_tokens":0,"ms":20}`)
	if got := rate.Expected(150, 900); got != 30*time.Millisecond {
		t.Errorf("0.2 ms per token: %v", got)
	}
	constant := table("modelled", `{"tokens":0,"cached_tokens":0,"ms":20}`)
	if got := constant.Expected(150, 900); got != 20*time.Millisecond {
		t.Errorf("a constant time: %v", got)
	}
	if got := table("none", `{"tokens":100,"cached_tokens":0,"ms":20}`).Expected(100, 0); got != 0 {
		t.Errorf("without a model: %v", got)
	}
	steep := table("modelled", `{"tokens":1,"cached_tokens":0,"ms":0.001},{"tokens":2,"cached_tokens":0,"ms":3600000}`)
	if got := steep.Expected(math.MaxInt64, math.MaxInt64); got != longestPrefill {
		t.Errorf("the longest: %v", got)
	}
	flat := table("modelled", `{"tokens":16777216,"cached_tokens":0,"ms":0.001}`)
	if got := flat.Expected(1, 0); got != 1 {
		t.Errorf("the shortest: %v", got)
	}
}

// TestExpectedGrows checks that more tokens behind equally many cached ones never take less time.
func TestExpectedGrows(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		p := randomPolicy(rng)
		p.PrefillLoadModel.Mode = Modelled
		p.PrefillLoadModel.Table = randomTable(rng, 1+rng.IntN(64))
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		// Two curves may cross, and beyond the last one their distance goes on growing.
		last := int64(p.PrefillLoadModel.Table[len(p.PrefillLoadModel.Table)-1].CachedTokens)
		cached, was := rng.Int64N(last+1), time.Duration(0)
		for tokens := int64(1); tokens < 1<<25; tokens += 1 + rng.Int64N(1<<21) {
			is := p.PrefillLoadModel.Expected(tokens, cached)
			if is < was-1 || is <= 0 {
				t.Fatalf("%d tokens behind %d take %v, fewer take %v: %+v", tokens, cached, is, was,
					p.PrefillLoadModel.Table)
			}
			was = is
		}
	}
}

// randomTable returns a valid table of a prefill load model.
func randomTable(rng *rand.Rand, n int) (table []PrefillTime) {
	at := PrefillTime{Tokens: rng.IntN(1000), Ms: 1 + rng.Float64()}
	for range n {
		table = append(table, at)
		if rng.IntN(4) == 0 {
			at = PrefillTime{CachedTokens: at.CachedTokens + 1 + rng.IntN(5000), Ms: 1 + rng.Float64()}
		}
		at.Tokens += 1 + rng.IntN(5000)
		at.Ms += 100 * rng.Float64()
	}
	return table
}

func TestPrefillLoadModelIsRefused(t *testing.T) {
	entry := func(tokens, cached int, ms float64) string {
		return fmt.Sprintf(`{"tokens":%d,"cached_tokens":%d,"ms":%g}`, tokens, cached, ms)
	}
	for model, want := range map[string]string{
		`7`:               "prefill_load_model: not a JSON object, allowed: an object of mode, table",
		`{"mode":"aic"}`:  `prefill_load_model.mode: "aic" is refused, allowed: none, modelled`,
		`{"mode":""}`:     `prefill_load_model.mode: "" is refused, allowed: none, modelled`,
		`{"mode":null}`:   `prefill_load_model.mode: null is refused`,
		`{"mode":1}`:      `prefill_load_model.mode: 1 is refused`,
		`{"tables":[]}`:   "prefill_load_model.tables: unknown key; there are mode, table; did you mean table?",
		`{"table":null}`:  "prefill_load_model.table: null is refused, allowed: a list of at most 64 objects of tokens, cached",
		`{"table":{}}`:    "prefill_load_model.table: {} is refused, allowed: a list",
		`{"table":[512]}`: "prefill_load_model.table[0]: not a JSON object, allowed: an object of tokens, cached",
		`{"mode":"modelled"}`: "prefill_load_model.table: empty is refused, allowed: at least one measurement if " +
			"mode is modelled",
		`{"mode":"modelled","table":[]}`: "prefill_load_model.table: empty is refused",
		`{"table":[{"tokens":1,"ms":2}]}`: "prefill_load_model.table[0].cached_tokens: missing; each entry has tokens, " +
			"cached_tokens, ms",
		`{"table":[{"tokens":1,"cached_tokens":0,"ms":2,"s":1}]}`: "prefill_load_model.table[0].s: unknown key",
		`{"table":[{"tokens":1,"tokens":1}]}`:                     "prefill_load_model.table[0].tokens: given twice",
		`{"table":[` + entry(1, 0, 1) + `,` + entry(2, 0, 0) + `]}`: "prefill_load_model.table[1].ms: 0 is refused, " +
			"allowed: a number from 0.001 to 3600000",
		`{"table":[` + entry(-1, 0, 1) + `]}`: "prefill_load_model.table[0].tokens: -1 is refused, " +
			"allowed: a whole number from 0 to 16777216",
		`{"table":[` + entry(1, 16, 1) + `]}`: "prefill_load_model.table[0].cached_tokens: 16 is refused, " +
			"allowed: 0, because",
		`{"table":[` + entry(2, 0, 1) + `,` + entry(1, 0, 1) + `]}`: "prefill_load_model.table[1]." +
			"tokens: 1 is refused, allowed: more than 2, because entries are sorted by cached_tokens, then by tokens",
		`{"table":[` + entry(2, 0, 1) + `,` + entry(2, 0, 1) + `]}`: "prefill_load_model.table[1].tokens: 2 is refused",
		`{"table":[` + entry(2, 0, 1) + `,` + entry(2, 9, 1) + `,` + entry(3, 8, 1) + `]}`: "prefill_load_model." +
			"table[2].cached_tokens: 8 is refused, allowed: 9 or more, because entries are sorted",
		`{"table":[` + entry(2, 0, 2) + `,` + entry(3, 0, 1.5) + `]}`: "prefill_load_model.table[1]." +
			"ms: 1.5 is refused, allowed: 2 or more, because more tokens take no less time",
		`{"table":[` + strings.Repeat(entry(1, 0, 1)+",", 64) + entry(1, 0, 1) + `]}`: "prefill_load_model.table: " +
			"a list of 65 is refused, allowed: a list of at most 64 objects",
	} {
		refused(t, `{"prefill_load_model":`+model+`}`, want)
	}
}

// TestPrefillLoadModelSurvivesItsDocument writes and reads a model, and shows its settings.
func TestPrefillLoadModelSurvivesItsDocument(t *testing.T) {
	p, err := Parse([]byte(measured))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(doc)
	if err != nil || !reflect.DeepEqual(back, p) || back.PrefillLoadModel.Table[4].Ms != 140 {
		t.Errorf("%s: %+v, %v", doc, back, err)
	}
	values := map[string]any{}
	for _, s := range p.Settings() {
		values[s.Name] = s.Value
	}
	if values["prefill_load_model.table[2].ms"] != 300.0 {
		t.Errorf("shown: %v", values)
	}
	p.PrefillLoadModel.Mode = NotModelled
	for _, s := range p.Settings() {
		if strings.HasPrefix(s.Name, "prefill_load_model.table") {
			t.Errorf("%s has no effect and is shown", s.Name)
		}
	}
	p.PrefillLoadModel.Table[1].Ms = math.NaN()
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "prefill_load_model.table[1].ms: NaN") {
		t.Errorf("validated: %v", err)
	}
}
