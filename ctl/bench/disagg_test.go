package bench

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/cluster"
)

func TestBenchDisagg(t *testing.T) {
	args := []string{"bench", "disagg", "--workloads", "long", "--requests", "120", "--loads", "0.4", "--seeds", "2",
		"--prefill", "4"}
	text, err := ctl(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, text, "| long | 0.4 | both, never | ", "| long | 0.4 | 4:4 | 4:4, automatic | ", "seeds 1 to 2")
	text, err = ctl(t, nil, append(args, "-o", "json")...)
	var j cluster.DisaggJudgement
	if err != nil || json.Unmarshal([]byte(text), &j) != nil || len(j.Rows) != 4 || len(j.Against) != 2 {
		t.Errorf("%v\n%s", err, text)
	}
	for flags, want := range map[string]string{
		"--workloads chats":         `--workloads "chats": must be some of all, chat, agents`,
		"--workloads long,recovery": "--workloads long,recovery: the fleets have different numbers of nodes",
		"--loads 0":                 "--loads 0: must be more than 0 and at most 2",
		"--prefill 8":               "--prefill 8: must be 1 to 7",
		"--prefill 2,2":             "2 nodes of role prefill: must be 1 to 7, each number once",
		"--seeds 1":                 "--seeds 1: must be 2 to 1000",
		"--transfer 0s":             "--transfer 0s: must be",
	} {
		if _, err := ctl(t, nil, append([]string{"bench", "disagg"}, strings.Fields(flags)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
