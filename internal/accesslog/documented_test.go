package accesslog

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestFieldsAreDocumented: docs/access-log.md has a row for each field.
func TestFieldsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/access-log.md")
	if err != nil {
		t.Fatal(err)
	}
	var r record
	r.set(&Entry{
		RequestID: []byte("x"), Model: "x", Node: "x", Method: "x", API: "x", End: "x", Cause: "x", Expected: 1e6,
		Cascade: "x", Resumed: "x", Key: "x", Tenant: "x",
		User: "x", Queued: 1e6,
	})
	var line map[string]any
	if err := json.Unmarshal(r.appendJSON(nil), &line); err != nil {
		t.Fatal(err)
	}
	if len(line) < 22 {
		t.Errorf("%d fields: %v", len(line), line)
	}
	for field := range line {
		if !strings.Contains(string(doc), "`"+field+"`") {
			t.Errorf("%s is not documented", field)
		}
	}
}
