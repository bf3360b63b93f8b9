package router_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// accessLine is a line of the access log.
type accessLine struct {
	ID                           string `json:"id"`
	Model, Node, API, End, Cause string
	Status, Attempts, Bytes      int
	Stream                       bool
	TTFT                         float64 `json:"ttft_seconds"`
	Expected                     float64 `json:"expected_ttft_seconds"`
	Duration                     float64 `json:"duration_seconds"`
	Prompt                       int     `json:"prompt_tokens"`
	Completion                   int     `json:"completion_tokens"`
	Cached                       int     `json:"cached_tokens"`
	Matched                      int     `json:"overlap_matched"`
	Total                        int     `json:"overlap_total"`

	Cascade        string
	CascadeStep    int     `json:"cascade_step"`
	CascadeEarlier float64 `json:"cascade_earlier_seconds"`
}

// TestAccessLogOnAFullDisk checks that lost lines are counted.
func TestAccessLogOnAFullDisk(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full")
	}
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Log.Access = "/dev/full" })
	mustAll(t, "without a log", []*reply{s.chat(chatBody("hello", plain)), s.chat(chatBody("hello again", plain))})
	eventually(t, "the lines are counted", func() bool {
		return s.metrics().sum("cgn_router_access_log_dropped_total") == 2
	})
	if s.log.count("access log not written") != 1 {
		t.Error("the log does not tell")
	}
}

// accessLines reads a complete access log, by request id.
func accessLines(t *testing.T, file string) map[string]accessLine {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]accessLine{}
	for line := range bytes.Lines(page) {
		var l accessLine
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all[l.ID] = l
	}
	return all
}
