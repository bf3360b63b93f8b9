package bench

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/disturb"
	"github.com/cognitora/dataplane/perf/replay"
)

// TestReplayReport: the report's names are in snake case, and bench disturb can read a node's
// figures from it.
func TestReplayReport(t *testing.T) {
	node := replay.Node{ID: "n", Requests: 3, Share: 0.75, MaxInFlight: 2, TTFT: replay.Times{P90: time.Second}}
	text, err := json.Marshal(report(&replay.Result{Nodes: []replay.Node{node}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"([^"]*)":`).FindAllSubmatch(text, -1) {
		if !regexp.MustCompile(`^[a-z0-9_]+$`).Match(m[1]) {
			t.Errorf("%s is not in snake case", m[1])
		}
	}
	var read disturb.Replay
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if want := (disturb.Node{ID: "n", Share: 0.75, TTFT: disturb.Times{P90: 1}}); len(read.Nodes) != 1 ||
		read.Nodes[0] != want {
		t.Errorf("got %+v, want %+v", read.Nodes, want)
	}
}
