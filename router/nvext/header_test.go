package nvext

import (
	"errors"
	"iter"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
)

// headersOf yields name, value, name, value ….
func headersOf(all ...string) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := 0; i+1 < len(all) && yield([]byte(all[i]), []byte(all[i+1])); i += 2 {
		}
	}
}

func TestHeadersBeatTheBody(t *testing.T) {
	x, err := parse(t, everything)
	if err != nil {
		t.Fatal(err)
	}
	err = ReadHeaders(x, headersOf(
		"Content-Type", "application/json", "X-Dynamo-Session-Id", "s", "X-Cgn-Node", "n",
		"X-Dynamo-Worker-Instance-Id", "host-2", "x-dynamo-prefill-instance-id", "8", "X-DYNAMO-DP-RANK", "0",
		"X-Dynamo-Prefill-Dp-Rank", "2", "X-Dynamo-Request-Priority", "7", "X-Dynamo-Request-Strict-Priority", "9",
		"X-Cgn-Router-Temperature", "0", "X-Cgn-Router-Overlap-Score-Credit", "0.25",
		"X-Cgn-Router-Overlap-Score-Weight", "4", "X-Cgn-Router-Assume-Kv-Reuse", "true",
		"X-Cgn-Router-Track-Prefill-Tokens", "false", "X-Cgn-Router-Shared-Cache-Multiplier", "0.5",
		"X-Cgn-Router-Ttft-Target", "1e2", "X-Cgn-Router-Itl-Target", "3",
		"X-Cgn-Allowed-Worker-Ids", "host-9, 7,host-9 ",
	))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := parse(t, everything)
	want.Priority, want.Last = 9, false
	want.Worker = Worker{"host-2", "x-dynamo-worker-instance-id"}
	want.Allowed, want.AllowedBy = Workers{"7", "host-9"}, "x-cgn-allowed-worker-ids"
	want.DPRank, want.DPRankBy = policy.Given(uint32(0)), "x-dynamo-dp-rank"
	want.Prefill.Worker = Worker{"8", "x-dynamo-prefill-instance-id"}
	want.Prefill.Rank, want.Prefill.RankBy = policy.Given(uint32(2)), "x-dynamo-prefill-dp-rank"
	want.Overrides = policy.Overrides{
		Targets:            policy.Targets{First: 0.1, Step: 0.003},
		OverlapScoreCredit: policy.Given(.25), PrefillLoadScale: policy.Given(4.), Temperature: policy.Given(0.),
		SharedCacheMultiplier: policy.Given(.5), AssumeKVReuse: policy.Given(true),
		TrackPrefillTokens: policy.Given(false),
	}
	if !reflect.DeepEqual(x, want) {
		t.Errorf("got  %+v\nwant %+v", x, want)
	}
}

func TestHeaderRefusals(t *testing.T) {
	for _, c := range []struct{ name, value, param, message string }{
		{"X-Cgn-Router-Temperature", "warm", "", "must be a number from 0 to 1000000"},
		{"X-Cgn-Router-Temperature", "-1", "", "must be a number from 0 to 1000000"},
		{"X-Cgn-Router-Temperature", "1.5x", "", "as JSON spells it"},
		{"X-Cgn-Router-Temperature", "NaN", "", "must be a number from 0 to 1000000"},
		{"X-Cgn-Router-Temperature", "null", "", "must be a number from 0 to 1000000"},
		{"X-Cgn-Router-Temperature", "", "", "is empty"},
		{"X-Cgn-Router-Temperature", "1e", "", "must be a number"},
		{"X-Cgn-Router-Assume-Kv-Reuse", "yes", "", "must be true or false"},
		{"X-Cgn-Router-Assume-Kv-Reuse", "tru", "", "as JSON spells it"},
		{"X-Cgn-Router-Shared-Cache-Multiplier", "2", "", "from 0 to 1"},
		{"X-Cgn-Router-Temprature", "1", "", "did you mean `x-cgn-router-temperature`?"},
		{"X-Cgn-Router-Moe-Query", "{}", "", "is not known"},
		{"X-Cgn-Router-", "1", "", "is not known"},
		{"X-Dynamo-Dp-Rank", "1.5", "", "must be a whole number from 0 to 4294967295"},
		{"X-Data-Parallel-Rank", "x", "", "must be a whole number"},
		{"X-Data-Parallel-Rank", "-1", "", "must be a whole number"},
		{"X-Dynamo-Request-Priority", "high", "", "must be a whole number"},
		{"X-Dynamo-Worker-Instance-Id", strings.Repeat("n", 257), "", "longer than 256 bytes"},
		{"X-Dynamo-Prefill-Instance-Id", "", "", "is empty"},
	} {
		err := ReadHeaders(&Ext{}, headersOf("Accept", "*/*", c.name, c.value))
		var e *scan.Error
		if !errors.As(err, &e) || e.Param != strings.ToLower(c.name) || !strings.Contains(e.Message, c.message) {
			t.Errorf("%s: %.20s\n got %+v\nwant %s", c.name, c.value, e, c.message)
		}
	}
	err := ReadHeaders(&Ext{}, headersOf("X-Dynamo-Dp-Rank", "1", "X-Dynamo-Dp-Rank", "1"))
	if err == nil || !strings.Contains(err.Error(), "is sent twice") {
		t.Errorf("the same header twice: %v", err)
	}
	err = ReadHeaders(&Ext{}, headersOf("X-Cgn-Router-Overlap-Score-Weight", "1",
		"X-Cgn-Router-Kv-Overlap-Score-Weight", "1"))
	if err == nil || !strings.Contains(err.Error(), "older name") {
		t.Errorf("two older names: %v", err)
	}
}

// TestAllowedWorkersHeader checks the bounds of the list in x-cgn-allowed-worker-ids.
func TestAllowedWorkersHeader(t *testing.T) {
	long := strings.Repeat("n", maxWorkerID+1)
	for value, want := range map[string]string{
		"a":                                      "",
		strings.Repeat("a,", maxEntries-1) + "a": "",
		"":                                       "`x-cgn-allowed-worker-ids` is empty",
		" ":                                      "`x-cgn-allowed-worker-ids[0]` is empty; name a worker",
		"a,,b":                                   "`x-cgn-allowed-worker-ids[1]` is empty; name a worker",
		"a,b,":                                   "`x-cgn-allowed-worker-ids[2]` is empty; name a worker",
		"a," + long:                              "`x-cgn-allowed-worker-ids[1]` is longer than 256 bytes",
		strings.Repeat("a,", maxEntries) + "a":   "`x-cgn-allowed-worker-ids` has more than 1024 entries",
	} {
		var x Ext
		err := ReadHeaders(&x, headersOf("X-Cgn-Allowed-Worker-Ids", value))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) ||
			err == nil && (len(x.Allowed) != 1 || x.Privileged != "x-cgn-allowed-worker-ids") {
			t.Errorf("%.20q: %v, %+v", value, err, x.Allowed)
		}
	}
}

// TestRankByTwoHeaders checks that the router's own header wins over that of engines, in either
// order.
func TestRankByTwoHeaders(t *testing.T) {
	for _, all := range [][]string{
		{"X-Dynamo-Dp-Rank", "1", "X-Data-Parallel-Rank", "2"}, {"X-Data-Parallel-Rank", "2", "X-Dynamo-Dp-Rank", "1"},
	} {
		var x Ext
		if err := ReadHeaders(&x, headersOf(all...)); err != nil || x.DPRank.Value != 1 ||
			x.DPRankBy != "x-dynamo-dp-rank" {
			t.Errorf("%v: %+v, %v", all, x, err)
		}
	}
	x := Ext{DPRank: policy.Given(uint32(1)), DPRankBy: "nvext.dp_rank"}
	if err := ReadHeaders(&x, headersOf("X-Data-Parallel-Rank", "2")); err != nil || x.DPRank.Value != 2 ||
		x.DPRankBy != "x-data-parallel-rank" {
		t.Errorf("%+v, %v", x, err)
	}
}

// TestIsHeader checks that IsHeader knows what ReadHeaders reads, and nothing more.
func TestIsHeader(t *testing.T) {
	for _, h := range headers {
		if name := http.CanonicalHeaderKey(h.name); !IsHeader([]byte(name)) {
			t.Errorf("%s is none", name)
		}
	}
	for _, name := range []string{"X-Dynamo-Session-Id", "X-Cgn-Router", "X-Cgn-Node", "Accept", ""} {
		if IsHeader([]byte(name)) {
			t.Errorf("%s is one", name)
		}
	}
	if !IsHeader([]byte("X-Cgn-Router-Unknown")) {
		t.Error("an unknown header is not seen, so it is not refused")
	}
}

// TestPrivileges checks which fields and headers only some clients may send.
func TestPrivileges(t *testing.T) {
	for doc, want := range map[string]string{
		`{"agent_hints":{"priority":1},"routing_constraints":{"required_taints":["a"]},"cache_salt":"s"}`: "",
		`{"backend_instance_id":null,"router":null,"allowed_worker_ids":null}`:                            "",
		`{"annotations":["a"],"decode_worker_id":1}`:                                                      "nvext.decode_worker_id",
		`{"prefill_worker_id":1}`:                       "nvext.prefill_worker_id",
		`{"dp_rank":1}`:                                 "nvext.dp_rank",
		`{"prefill_dp_rank":1}`:                         "nvext.prefill_dp_rank",
		`{"allowed_worker_ids":[1]}`:                    "nvext.allowed_worker_ids",
		`{"cache_salt":"s","router":{"ttft_target":1}}`: "nvext.router",
	} {
		if x, err := parse(t, doc); err != nil || x.Privileged != want {
			t.Errorf("%s: %v, %+v", doc, err, x)
		}
	}
	for _, h := range headers {
		value, want := "1", h.name
		if strings.Contains(h.name, "reuse") || strings.Contains(h.name, "track") {
			value = "true"
		}
		if strings.Contains(h.name, "priority") {
			want = ""
		}
		var x Ext
		if err := ReadHeaders(&x, headersOf(h.name, value)); err != nil || x.Privileged != want {
			t.Errorf("%s: %v, %q", h.name, err, x.Privileged)
		}
	}
}
