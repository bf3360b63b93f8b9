package kv

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/evict"
)

func TestKVTraceOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	text := `{"timestamp":0,"hash_ids":[1,2],"bytes":8192}
{"timestamp":1,"hash_ids":[1,2,3]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, nil, "kv", "trace", file, "--sizes", "34,100")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "2 requests, 3 different blocks", "40.00 %", "34 %", "4.0 KiB", "12.0 KiB", "leaf-lru",
		"arc", "leaf-arc")
	if err := os.WriteFile(file, []byte(text+`{"times`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = ctl(t, nil, "kv", "trace", file); err != nil {
		t.Error(err)
	}
	ctltest.Want(t, out, "2 requests")
	for name, args := range map[string][]string{
		"no such file": {"nowhere.jsonl"}, "must be 0.000001 to 100": {"--sizes", "0"}, "line 1": {"trace_test.go"}, "has no accesses": {os.DevNull},
	} {
		_, err := ctl(t, nil, append([]string{"kv", "trace"}, args...)...)
		if err == nil {
			t.Errorf("%v is taken", args)
			continue
		}
		ctltest.Want(t, err.Error(), name)
	}
}

// TestKVTraceOfTheGenerator compares the RAM tier's policy with the others for caches of 5 % and
// more.
func TestKVTraceOfTheGenerator(t *testing.T) {
	out, err := ctl(t, nil, "kv", "trace", "--requests", "3000", "--sizes", "5,10,20,40", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var r traceReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	ours := map[float64]float64{}
	for _, x := range r.Results {
		if x.Policy == evict.Ours {
			ours[x.Share] = x.Prefix
		}
	}
	for _, x := range r.Results {
		slack := 0.0
		switch x.Policy {
		case "arc":
			slack = 0.01
		case "lru", "leaf-lru": // this trace favours them at 10 %, unlike the public traces
			slack = 0.005
		}
		if ours[x.Share] < x.Prefix-slack {
			t.Errorf("%s at %g: %.4f, ours %.4f", x.Policy, x.Share, x.Prefix, ours[x.Share])
		}
	}
}
