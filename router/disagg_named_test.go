package router_test

import (
	"strings"
	"testing"
)

// TestNamedPrefillRank checks that a rank that no prefill node has is refused. Explain says where a
// named prefill node has no effect.
func TestNamedPrefillRank(t *testing.T) {
	t.Parallel()
	engines := append(simulate(t, 1, handing, ranked), simulate(t, 2, handing)...)
	d := divideAmong(t, engines[:2], engines[2:])
	ask := func(wish string) *reply {
		return d.chat(strings.Replace(chatBody("short", streaming), "{", `{"nvext":{`+wish+`},`, 1))
	}
	eventually(t, "the ranks are known", func() bool { return ask(`"prefill_dp_rank":1`).status == 200 })
	for wish, want := range map[string]string{
		`"prefill_dp_rank":2`: "has more than 2 data-parallel ranks; send a number from 0 to 1",
		`"prefill_dp_rank":1,"prefill_worker_id":"prefill-1"`: "has data-parallel ranks; leave it out",
		`"prefill_dp_rank":1,"prefill_worker_id":"prefill-0"`: "",
		`"prefill_dp_rank":0,"prefill_worker_id":"prefill-1"`: "",
	} {
		r := ask(wish)
		if want == "" && r.status == 200 && r.header.Get("x-cgn-prefill-node") != "" {
			continue
		}
		if text := string(r.body); want == "" || r.status != 400 || !strings.Contains(text, want) ||
			!strings.Contains(text, `"param":"nvext.prefill_dp_rank"`) {
			t.Errorf("%s: %v", wish, r)
		}
	}
	several := strings.Replace(chatBody("short", `,"n":2`), "{", `{"nvext":{"prefill_worker_id":"prefill-1"},`, 1)
	if r := d.chat(several); r.status != 200 || r.header.Get("x-cgn-prefill-node") != "" {
		t.Errorf("two choices: %v", r)
	}
	if e := d.explain(several); e.Prefill == nil || e.Prefill.Result != "form" ||
		!strings.HasSuffix(e.Prefill.Why, "; nvext.prefill_worker_id has no effect") {
		t.Errorf("explained: %+v", e.Prefill)
	}
}

// TestExperimentalConnectorIsNamed checks that the log warns once about a connector that is tested
// with simulated engines only.
func TestExperimentalConnectorIsNamed(t *testing.T) {
	t.Parallel()
	const line = "the connector is experimental"
	sglang := wireOf("sglang").divide(t, 1, 2)
	eventually(t, "the warning", func() bool { return sglang.log.count(line) == 1 })
	d := divide(t, 1, 1)
	d.chat(chatBody(longPrompt("hello"), plain))
	if d.log.count(line) != 0 {
		t.Errorf("nixl: %s", d.log.text())
	}
}
