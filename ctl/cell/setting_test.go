package cell

import (
	"testing"

	"github.com/cognitora/dataplane/router/policy"
)

// TestIdleSaysWhy checks the reasons for which settings have no effect.
func TestIdleSaysWhy(t *testing.T) {
	const wait = "predicted.wait: no effect while predicted.first and ttft_slo_ms are 0, except on a request with a " +
		"ttft_target"
	for doc, want := range map[string]string{
		`{}`:                                 "",
		`{"predicted":{"first":0,"wait":3}}`: wait,
		`{"predicted":{"first":0,"wait":3,"learn":false,"explore":false},"cost":{"temperature":1}}`: "cost.temperature: " +
			"no effect in mode predicted; " + wait + "; predicted.explore: no effect while predicted.learn is false",
		`{"mode":"cost","predicted":{"explore":false}}`: "predicted.explore: no effect in mode cost",
	} {
		p, err := policy.Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if got := Idle(p); got != want {
			t.Errorf("%s: %q, want %q", doc, got, want)
		}
	}
}
