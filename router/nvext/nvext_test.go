package nvext

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
)

// parse scans a body with the given member nvext, and parses that.
func parse(t testing.TB, nvext string) (*Ext, error) {
	t.Helper()
	body := []byte(`{"model":"m","nvext": ` + nvext + ` ,"messages":[]}`)
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		t.Fatalf("%s: %v", nvext, err)
	}
	x, err := Parse(body, r.Nvext())
	clear(body) // an Ext owns its memory
	return x, err
}

const everything = `{
	"greed_sampling": true, "use_raw_prompt": false, "annotations": ["a", "b:c"], "backend_instance_id": 7,
	"token_data": [0, 4294967295], "max_thinking_tokens": 5, "cache_salt": "s\u0061lt", "extra_fields": ["timing"],
	"metadata_upload": {"url": "s3://x"}, "prefill_worker_id": "host-1", "decode_worker_id": "7", "dp_rank": 3,
	"prefill_dp_rank": 4294967295, "request_timestamp_ms": 1.5,
	"agent_hints": {"priority": -3, "strict_priority": 2, "osl": 256, "speculative_prefill": true,
		"latency_sensitivity": -0.5},
	"routing_constraints": {"required_taints": ["r"], "preferred_taints": {"p\n": 0.5, "q": -2}},
	"allowed_worker_ids": ["b", 9007199254740991, "a", "b"],
	"router": {"overlap_score_credit": 1.5, "prefill_load_scale": 2, "router_temperature": 0.5,
		"assume_kv_reuse": false, "track_prefill_tokens": true, "shared_cache_multiplier": 1, "ttft_target": 200,
		"itl_target": 20.5, "moe_query": {"experts": ["e1", 17, "17", "e1"], "fallback_to_unlabeled": false}}}`

func TestEverything(t *testing.T) {
	x, err := parse(t, everything)
	if err != nil {
		t.Fatal(err)
	}
	want := &Ext{
		Worker:  Worker{"7", "nvext.decode_worker_id"},
		Allowed: Workers{"9007199254740991", "a", "b"}, AllowedBy: "nvext.allowed_worker_ids",
		DPRank: policy.Given(uint32(3)), DPRankBy: "nvext.dp_rank",
		Prefill: Prefill{Worker: Worker{"host-1", "nvext.prefill_worker_id"}}, RequiredTaints: []string{"r"},
		PreferredTaints: []Taint{{"p\n", 0.5}, {"q", -2}},
		Priority:        2, Last: true, OSL: 256,
		Overrides: policy.Overrides{
			Targets:            policy.Targets{First: 0.2, Step: 0.0205},
			OverlapScoreCredit: policy.Given(1.5), PrefillLoadScale: policy.Given(2.), Temperature: policy.Given(.5),
			SharedCacheMultiplier: policy.Given(1.), AssumeKVReuse: policy.Given(false),
			TrackPrefillTokens: policy.Given(true),
		},
		MoE:       MoEQuery{Experts: []string{"e1", "17"}},
		CacheSalt: []byte("salt"), Privileged: "nvext.backend_instance_id",
	}
	if !reflect.DeepEqual(x, want) {
		t.Errorf("got  %+v\nwant %+v", x, want)
	}
}

// TestNullIsAbsent checks every member, because clients' libraries send null for what is not set.
func TestNullIsAbsent(t *testing.T) {
	if x, err := parse(t, "null"); x != nil || err != nil {
		t.Errorf("null: %+v, %v", x, err)
	}
	var members []string
	for _, path := range paths() {
		if !strings.Contains(path, ".") {
			members = append(members, fmt.Sprintf("%q:null", path))
		}
	}
	for _, doc := range []string{
		`{}`, "{" + strings.Join(members, ",") + "}", `{"router":{"router_temperature":null,"moe_query":null}}`,
		`{"agent_hints":{"osl":null},"routing_constraints":{"required_taints":null,"preferred_taints":null}}`,
	} {
		x, err := parse(t, doc)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		if x.Privileged = ""; !reflect.DeepEqual(x, &Ext{}) {
			t.Errorf("%s: %+v", doc, x)
		}
	}
}

// paths returns the paths of all members below nvext.
func paths() (all []string) {
	objects := map[string][]field{
		"": rootFields, "metadata_upload.": uploadFields, "agent_hints.": hintFields, "router.": routerFields,
		"routing_constraints.": constraintFields, "router.moe_query.": moeFields,
	}
	for _, prefix := range slices.Sorted(maps.Keys(objects)) {
		for _, f := range objects[prefix] {
			all = append(all, prefix+f.name)
		}
	}
	return all
}

func list(n int, entry string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(entry+",", n), ",") + "]"
}

// TestRefusals checks that an error names the member, and what is wrong with it.
func TestRefusals(t *testing.T) {
	for _, c := range []refusal{
		{`{"dp_rank":1,"dp_r\u0061nk":1}`, "nvext.dp_rank", "appears twice"},
		{`{"dp_rank":-1}`, "nvext.dp_rank", "must be a whole number from 0 to 4294967295"},
		{`{"dp_rank":4294967296}`, "nvext.dp_rank", "must be a whole number"},
		{`{"dp_rank":1.5}`, "nvext.dp_rank", "must be a whole number"},
		{`{"dp_rank":"1"}`, "nvext.dp_rank", "must be a whole number from 0 to 4294967295, not a string"},
		{`{"greed_sampling":1}`, "nvext.greed_sampling", "must be true or false, not a number"},
		{`{"agent_hints":[]}`, "nvext.agent_hints", "must be an object, not an array"},
		{`{"agent_hints":{"priority":2147483648}}`, "nvext.agent_hints.priority", "from -2147483648 to 2147483647"},
		{`{"agent_hints":{"osl":-1}}`, "nvext.agent_hints.osl", "must be a whole number"},
		{`{"agent_hints":{"latency_sensitivity":1e999}}`, "nvext.agent_hints.latency_sensitivity", "must be a number"},
		{`{"router":{"router_temperature":-0.1}}`, "nvext.router.router_temperature", "must be a number from 0 to 1000000"},
		{`{"router":{"router_temperature":0.` + strings.Repeat("1", 90) + `}}`, "nvext.router.router_temperature",
			"in at most 64 characters"},
		{`{"router":{"shared_cache_multiplier":1.1}}`, "nvext.router.shared_cache_multiplier", "from 0 to 1"},
		{`{"router":{"ttft_target":0}}`, "nvext.router.ttft_target", "above 0"},
		{`{"router":{"overlap_score_weight":1,"kv_overlap_score_weight":1}}`, "nvext.router.kv_overlap_score_weight",
			"older name of `prefill_load_scale`"},
		{`{"router":{"moe_query":{"fallback_to_unlabeled":true}}}`, "nvext.router.moe_query", "list them in `experts`"},
		{`{"router":{"moe_query":{"experts":[1,{}]}}}`, "nvext.router.moe_query.experts[1]", "must be a string"},
		{`{"router":{"moe_query":{"experts":[` + `-1]}}}`, "nvext.router.moe_query.experts[0]", "must be a whole number"},
		{`{"annotations":"x"}`, "nvext.annotations", "must be a list of strings, not a string"},
		{`{"annotations":["x",1]}`, "nvext.annotations[1]", "must be a string, not a number"},
		{`{"annotations":` + list(1025, `"x"`) + `}`, "nvext.annotations", "has more than 1024 entries"},
		{`{"annotations":["` + strings.Repeat("x", 1025) + `"]}`, "nvext.annotations[0]", "longer than 1024 bytes"},
		{`{"annotations":[""]}`, "nvext.annotations[0]", "is empty"},
		{`{"token_data":[1,-1]}`, "nvext.token_data[1]", "must be a whole number"},
		{`{"token_data":{}}`, "nvext.token_data", "must be a list of token ids"},
		{`{"cache_salt":""}`, "nvext.cache_salt", "is empty"},
		{`{"cache_salt":5}`, "nvext.cache_salt", "must be a string"},
		{`{"metadata_upload":{"uri":"x"}}`, "nvext.metadata_upload.uri", "did you mean `url`?"},
		{`{"backend_instance_id":1.5}`, "nvext.backend_instance_id", "a node's name or its number"},
		{`{"backend_instance_id":-1}`, "nvext.backend_instance_id", "a node's name or its number"},
		{`{"backend_instance_id":[]}`, "nvext.backend_instance_id", "a node's name or its number, not an array"},
		{`{"backend_instance_id":"` + strings.Repeat("n", 257) + `"}`, "nvext.backend_instance_id", "longer than 256"},
		{`{"backend_instance_id":1,"decode_worker_id":2}`, "nvext.decode_worker_id",
			"names another worker than `nvext.backend_instance_id`"},
		{`{"allowed_worker_ids":[]}`, "nvext.allowed_worker_ids", "is empty"},
		{`{"allowed_worker_ids":["a",null]}`, "nvext.allowed_worker_ids[1]", "a node's name or its number, not null"},
		{`{"allowed_worker_ids":` + list(1025, `"x"`) + `}`, "nvext.allowed_worker_ids", "has more than 1024 entries"},
		{`{"routing_constraints":{"preferred_taints":{"a":"b"}}}`, "nvext.routing_constraints.preferred_taints.a",
			"must be a number, not a string"},
		{`{"routing_constraints":{"preferred_taints":{"a":1,"\u0061":1}}}`,
			"nvext.routing_constraints.preferred_taints.a", "appears twice"},
		{`{"routing_constraints":{"preferred_taints":["a"]}}`, "nvext.routing_constraints.preferred_taints",
			"must be an object, not an array"},
		{`{"routing_constraints":{"preferred_taints":{"` + strings.Repeat("x", 1025) + `":1}}}`,
			"nvext.routing_constraints.preferred_taints", "longer than 1024 bytes"},
		{`{"routing_constraints":{"preferred_taints":` + manyTaints(65) + `}}`,
			"nvext.routing_constraints.preferred_taints", "has more than 64 entries"},
	} {
		c.check(t)
	}
}

// refusal is a nvext that is refused, with the error's member and a part of its message.
type refusal struct{ doc, param, message string }

func (c *refusal) check(t *testing.T) {
	t.Helper()
	x, err := parse(t, c.doc)
	var e *scan.Error
	if x != nil || !errors.As(err, &e) || e.Param != c.param || !strings.Contains(e.Message, "`"+c.param+"`") ||
		!strings.Contains(e.Message, c.message) || e.Code == "" || e.Offset < len(`{"model":"m","nvext": `) {
		t.Errorf("%.90s:\n got %+v\nwant %s: %s", c.doc, e, c.param, c.message)
	}
}

// TestUnknownKeys checks that an unknown key of each object gets the nearest name, and a key that
// is near to none the names of its object.
func TestUnknownKeys(t *testing.T) {
	for _, c := range []refusal{
		{`{"routr":{}}`, "nvext.routr", "is not known; did you mean `router`?"},
		{`{"router":{"router_temprature":1}}`, "nvext.router.router_temprature", "did you mean `router_temperature`?"},
		{`{"router":{"temperature_of_it":1}}`, "nvext.router.temperature_of_it", "known are overlap_score_credit, "},
		{`{"router":{"temperatur":1}}`, "nvext.router.temperatur", "did you mean `router_temperature`?"},
		{`{"router":{"temperature_foo_bar":1}}`, "nvext.router.temperature_foo_bar",
			"is not known; known are overlap_score_credit, prefill_load_scale, "},
		{`{"agent_hints":{"olS":1}}`, "nvext.agent_hints.olS", "did you mean `osl`?"},
		{`{"agent_hints":{"nothing_like_it":1}}`, "nvext.agent_hints.nothing_like_it",
			"is not known; known are priority, strict_priority, osl, speculative_prefill, latency_sensitivity"},
		{`{"routing_constraints":{"required_taint":[]}}`, "nvext.routing_constraints.required_taint",
			"did you mean `required_taints`?"},
		{`{"Router":{}}`, "nvext.Router", "did you mean `router`?"},
		{`{"session_control":{}}`, "nvext.session_control", "is not known"},
		{`{"` + strings.Repeat("x", 100) + `":1}`, "nvext." + strings.Repeat("x", 64), "is not known"},
		{`{"router":{"moe_query":{"expert":[1]}}}`, "nvext.router.moe_query.expert", "did you mean `experts`?"},
	} {
		c.check(t)
	}
}

// TestBoundsOfExperts checks the bounds of a list of experts, and its entry that is too long.
func TestBoundsOfExperts(t *testing.T) {
	for experts, want := range map[string]string{
		list(256, `"`+strings.Repeat("e", 32)+`"`): "",
		list(257, "1"):                          "`nvext.router.moe_query.experts` has more than 256 entries",
		`[1,"` + strings.Repeat("e", 33) + `"]`: "`nvext.router.moe_query.experts[1]` is longer than 32 bytes",
	} {
		_, err := parse(t, `{"router":{"moe_query":{"experts":`+experts+`}}}`)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", experts, err, want)
		}
	}
}

func manyTaints(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"t%d":1`, i)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// TestOlderNames checks overlap_score_weight: it wins over prefill_load_scale, and 0 takes the
// credit too.
func TestOlderNames(t *testing.T) {
	for doc, want := range map[string][2]policy.Optional[float64]{
		`{"overlap_score_weight":2.5}`:                                {{}, policy.Given(2.5)},
		`{"kv_overlap_score_weight":0}`:                               {policy.Given(0.), policy.Given(0.)},
		`{"overlap_score_weight":2,"prefill_load_scale":3}`:           {{}, policy.Given(2.)},
		`{"overlap_score_weight":0,"overlap_score_credit":0.5}`:       {policy.Given(0.), policy.Given(0.)},
		`{"overlap_score_credit":0.5,"kv_overlap_score_weight":2}`:    {policy.Given(.5), policy.Given(2.)},
		`{"overlap_score_credit":0.5,"kv_overlap_score_weight":null}`: {policy.Given(.5), {}},
	} {
		x, err := parse(t, `{"router":`+doc+`}`)
		if err != nil {
			t.Fatal(err)
		}
		o := &x.Overrides
		if got := [2]policy.Optional[float64]{o.OverlapScoreCredit, o.PrefillLoadScale}; got != want {
			t.Errorf("%s: credit and scale %+v, want %+v", doc, got, want)
		}
	}
}

// TestOverridesHaveTheRangesOfTheSettings sends a bound of each override, and a number beyond it.
// The policy must take the bound as a setting of mode cost, and refuse the other number.
func TestOverridesHaveTheRangesOfTheSettings(t *testing.T) {
	settings := map[string]string{
		"overlap_score_credit": "overlap_score_credit", "prefill_load_scale": "prefill_load_scale",
		"overlap_score_weight": "overlap_score_weight", "kv_overlap_score_weight": "overlap_score_weight",
		"router_temperature": "temperature", "shared_cache_multiplier": "shared_cache_multiplier",
		"assume_kv_reuse": "assume_kv_reuse", "track_prefill_tokens": "track_prefill_tokens",
		"ttft_target": "", "itl_target": "", "moe_query": "", // no setting
	}
	for _, f := range routerFields {
		setting, known := settings[f.name]
		if !known {
			t.Errorf("name the setting that %s replaces", f.name)
		}
		if setting == "" {
			continue
		}
		for _, value := range []string{"-0.001", "0", "0.5", "1", "1.001", "1e6", "1000001", "true", "false"} {
			_, err := parse(t, fmt.Sprintf(`{"router":{%q:%s}}`, f.name, value))
			_, refused := policy.Parse(fmt.Appendf(nil, `{"cost":{%q:%s}}`, setting, value))
			if (err == nil) != (refused == nil) {
				t.Errorf("%s %s: %v, and as a setting %v", f.name, value, err, refused)
			}
		}
	}
}

func TestWorkers(t *testing.T) {
	w := Workers{"12", "34", "a", "host-1"}
	for node, want := range map[string]bool{
		"a": true, "host-1": true, "b": false, "host": false, "": false, "12": true,
	} {
		if w.Has(node, 5) != want {
			t.Errorf("%q: %v", node, !want)
		}
	}
	if !w.Has("x", 34) || w.Has("x", 3) {
		t.Error("numbers are not found")
	}
	if n := testing.AllocsPerRun(100, func() { w.Has("some-node", 9007199254740991) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTheDocumentNamesEveryMember holds docs/nvext.md to the fields and headers.
func TestTheDocumentNamesEveryMember(t *testing.T) {
	page, err := os.ReadFile("../../docs/nvext.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths() {
		if !strings.Contains(string(page), "`"+path+"`") {
			t.Errorf("docs/nvext.md does not have `%s`", path)
		}
	}
	for _, h := range headers {
		if !strings.Contains(string(page), "`"+h.name+"`") {
			t.Errorf("docs/nvext.md does not have `%s`", h.name)
		}
	}
}
