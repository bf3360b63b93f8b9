package nvext

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

// FuzzParse compares Parse with encoding/json. A refusal must explain itself. What is accepted has
// known members only, is bounded, and does not change with the body.
func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	for _, doc := range []string{
		`null`, `{}`, `{"router":{"moe_query":{"experts":[1]}}}`, `{"allowed_worker_ids":["\ud83d\ude00"]}`,
		`{"routing_constraints":{"preferred_taints":{"a":1e3}}}`, `{"x":1}`, `{"dp_rank":16.0}`,
	} {
		f.Add([]byte(doc))
	}
	known := map[string]bool{}
	for _, path := range paths() {
		known[path] = true
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		body := []byte(`{"model":"m","messages":[],"nvext":` + string(doc) + `}`)
		var r scan.Request
		if scan.Scan(scan.Chat, body, &r) != nil {
			return
		}
		at := r.Nvext()
		x, err := Parse(body, at)
		if err != nil {
			if e, ok := err.(*scan.Error); !ok || !strings.HasPrefix(e.Param, "nvext") || e.Message == "" ||
				e.Offset < at.Start || e.Offset > len(body) {
				t.Fatalf("%q: error %#v", doc, err)
			}
			return
		}
		var tree map[string]any
		if err := json.Unmarshal(body[at.Start:at.End], &tree); err != nil {
			t.Fatalf("%q: accepted, but %v", doc, err)
		}
		if tree == nil != (x == nil) {
			t.Fatalf("%q: %v and %+v", doc, tree, x)
		}
		if x == nil {
			return
		}
		checkKnown(t, known, tree, "")
		checkBounds(t, x)
		if hints, ok := tree["agent_hints"].(map[string]any); ok && hints["osl"] != nil &&
			hints["osl"].(float64) != float64(x.OSL) {
			t.Fatalf("%q: osl %d", doc, x.OSL)
		}
		before := fmt.Sprintf("%+v", x)
		clear(body)
		if after := fmt.Sprintf("%+v", x); after != before {
			t.Fatalf("%q: was %s, is %s", doc, before, after)
		}
	})
}

func checkKnown(t *testing.T, known map[string]bool, tree map[string]any, prefix string) {
	for name, value := range tree {
		path := prefix + name
		if !known[path] {
			t.Fatalf("%q is accepted", path)
		}
		if below, ok := value.(map[string]any); ok && path != "routing_constraints.preferred_taints" {
			checkKnown(t, known, below, path+".")
		}
	}
}

func checkBounds(t *testing.T, x *Ext) {
	if len(x.Allowed) > maxEntries || len(x.RequiredTaints) > maxEntries || len(x.PreferredTaints) > maxTaints ||
		len(x.MoE.Experts) > maxExperts || len(x.Worker.ID) > maxWorkerID || len(x.CacheSalt) > maxSalt {
		t.Fatalf("too long: %+v", x)
	}
}

// FuzzHeaders checks that no value of a header is accepted that is none.
func FuzzHeaders(f *testing.F) {
	for i, h := range headers {
		f.Add(h.name, "0."+strings.Repeat("1", i))
	}
	f.Add("x-cgn-router-assume-kv-reuse", "true")
	f.Add("x-cgn-allowed-worker-ids", "a, 7,,")
	f.Fuzz(func(t *testing.T, name, value string) {
		var x Ext
		err := ReadHeaders(&x, headersOf(name, value))
		if e, ok := err.(*scan.Error); err != nil && (!ok || e.Param == "" || e.Message == "") {
			t.Fatalf("%q: %q: error %#v", name, value, err)
		}
		checkBounds(t, &x)
	})
}
