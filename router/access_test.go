package router_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// accessLine is a line of the access log.
type accessLine struct {
	ID                           string `json:"id"`
	Model, Node, API, End, Cause string
	Status, Attempts, Bytes      int
	Stream                       bool
	TTFT                         float64 `json:"ttft_seconds"`
	Duration                     float64 `json:"duration_seconds"`
	Prompt                       int     `json:"prompt_tokens"`
	Completion                   int     `json:"completion_tokens"`
	Cached                       int     `json:"cached_tokens"`
	Matched                      int     `json:"overlap_matched"`
	Total                        int     `json:"overlap_total"`
}

// accessLines reads an access log that is complete, by request id.
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
