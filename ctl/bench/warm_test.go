package bench

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/cluster"
)

func TestBenchWarm(t *testing.T) {
	args := []string{"bench", "warm", "--requests", "120", "--loads", "0.4", "--seeds", "2", "--working-set", "0.1"}
	text, err := ctl(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, text, "| 0.4 | no caches | ", "| 0.4 | fleet | ", "seeds 1 to 2")
	text, err = ctl(t, nil, append(args, "-o", "json")...)
	var j cluster.WarmJudgement
	if err != nil || json.Unmarshal([]byte(text), &j) != nil || len(j.Rows) != 5 || len(j.Against) != 3 {
		t.Errorf("%v\n%s", err, text)
	}
	for flags, want := range map[string]string{
		"--policy {":      "--policy: ",
		"--loads 0":       "--loads 0: must be more than 0 and at most 10",
		"--working-set 0": "--working-set 0: must be",
		"--seeds 1":       "--seeds 1: must be 2 to 1000",
	} {
		if _, err := ctl(t, nil, append([]string{"bench", "warm"}, strings.Fields(flags)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
