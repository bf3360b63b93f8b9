package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/router/policy"
)

// documentOf returns the keys of the default policy's document, with the sections removed:
// weights.kv becomes kv, and tiers stays one.
func documentOf(t *testing.T) map[string]any {
	t.Helper()
	doc, err := json.Marshal(policy.Default())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]any{}
	if err := json.Unmarshal(doc, &keys); err != nil {
		t.Fatal(err)
	}
	for key, weight := range keys["weights"].(map[string]any) {
		keys[key] = weight
	}
	delete(keys, "weights")
	return keys
}

// TestPolicyTable: the table has a row for each key of the document.
func TestPolicyTable(t *testing.T) {
	var out bytes.Buffer
	s := &state{App: &cli.App{Out: &out, Output: "table"}}
	if err := s.showPolicy(policy.Default(), "here"); err != nil {
		t.Fatal(err)
	}
	for key := range documentOf(t) {
		if !strings.Contains("\n"+out.String(), "\n"+key+" ") {
			t.Errorf("no row for %s in\n%s", key, out.String())
		}
	}
}

// TestPolicyPage: docs/policy.md has each key with its default, and each mode.
func TestPolicyPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	keys := documentOf(t)
	for key, tier := range keys["tiers"].(map[string]any) {
		keys["tiers."+key] = tier
	}
	delete(keys, "tiers")
	for key, value := range keys {
		if !strings.Contains(page, fmt.Sprintf("\n| `%s` | `%v` |", key, value)) {
			t.Errorf("no row for %s with the default %v", key, value)
		}
	}
	for _, mode := range policy.ModeNames() {
		if !strings.Contains(page, "`"+mode+"`") {
			t.Errorf("no word on mode %s", mode)
		}
	}
	if rows := strings.Count(page, "\n| `"); rows != len(keys) {
		t.Errorf("%d rows for %d keys", rows, len(keys))
	}
}
