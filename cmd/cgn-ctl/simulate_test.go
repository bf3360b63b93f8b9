package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/cluster"
)

func TestBenchCluster(t *testing.T) {
	args := []string{"bench", "cluster", "--requests", "200", "--nodes", "3", "--cache-share", "3", "--speed", "2", "--modes", "score,random"}
	text, err := ctl(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	want(t, text, "200 requests", "seed 1", "3 engines", "| score | 0.", "| random | 0.")
	again, err := ctl(t, nil, args...)
	if err != nil || again != text {
		t.Errorf("a second time it says (%v)\n%s", err, again)
	}
	text, err = ctl(t, nil, append(args, "-o", "json")...)
	var r cluster.Report
	if err != nil || json.Unmarshal([]byte(text), &r) != nil || len(r.Results) != 2 || r.Results[0].Answered != 200 {
		t.Errorf("%v\n%s", err, text)
	}
	for flags, hint := range map[string]string{
		"--nodes 0":           "--nodes",
		"--cache-share 0":     "--cache-share",
		"--utilisation 1":     "--utilisation",
		"--modes best":        "best",
		"--policy {\"kv\":2}": "kv: 2 is refused",
		"--cache-share 0.01":  "cannot hold the longest request",
	} {
		if _, err := ctl(t, nil, append(args[:4:4], strings.Fields(flags+" --speed 2")...)...); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
