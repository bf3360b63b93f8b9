package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/router/policy"
)

// documentOf returns the values of the default policy's document by the paths of their keys.
func documentOf(t *testing.T) map[string]any {
	t.Helper()
	doc, err := json.Marshal(policy.Default())
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(doc, &members); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	var flatten func(at string, members map[string]any)
	flatten = func(at string, members map[string]any) {
		for key, value := range members {
			if below, ok := value.(map[string]any); ok {
				flatten(at+key+".", below)
			} else {
				values[at+key] = value
			}
		}
	}
	flatten("", members)
	return values
}

// TestPolicyTable: the table has a row for each key of the mode, with a note where 0 means a lot.
func TestPolicyTable(t *testing.T) {
	var out bytes.Buffer
	s := &state{App: &cli.App{Out: &out, Output: "table"}}
	p := *policy.Default()
	p.Mode, p.Score.Weights.Pending = policy.Score, 0
	if err := s.showPolicy(&p, "here"); err != nil {
		t.Fatal(err)
	}
	table := "\n" + out.String()
	for key := range documentOf(t) {
		section, _, nested := strings.Cut(key, ".")
		_, ofMode := policy.ParseMode(section)
		want := (!nested || ofMode != nil || section == p.Mode.String()) && key != "ttft_slo_ms" // of mode predicted
		if shown := strings.Contains(table, "\n"+key+" "); shown != want {
			t.Errorf("row for %s: %v in\n%s", key, shown, table)
		}
	}
	for _, want := range []string{"0 (prefill that waits does not count)", "\nsource "} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// TestHelpHasEveryKey checks that the help of set-policy has each key at the top of a document.
func TestHelpHasEveryKey(t *testing.T) {
	help, err := ctl(t, nil, "cluster", "set-policy", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for f := range reflect.TypeFor[policy.Policy]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !strings.Contains(help, key) {
			t.Errorf("no %s in\n%s", key, help)
		}
	}
}

// TestUnusedSettingsOfAPolicyAreNamed: set-policy stores settings that have no effect, and warns of
// each once.
func TestUnusedSettingsOfAPolicyAreNamed(t *testing.T) {
	env := fleetState(t)
	var warnings bytes.Buffer
	root := ctltest.Root(Command, io.Discard, &warnings, func(name string) string { return env[name] })
	root.SetArgs([]string{"cluster", "set-policy", `{"score":{"max_share":1},"max_share":2}`})
	root.SetContext(t.Context())
	const want = "cgn-ctl: score.max_share has no effect; leave it out\ncgn-ctl: max_share has no effect; leave it out\n"
	if err := root.Execute(); err != nil || warnings.String() != want {
		t.Errorf("%q, %v", warnings.String(), err)
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
	for key, value := range keys {
		if !strings.Contains(page, fmt.Sprintf("\n| `%s` | `%v` |", key, value)) {
			t.Errorf("no row for %s with the default %v", key, value)
		}
	}
	unset := []string{ // the default document has no such keys
		"prefill_load_model.table", "busy.active_decode_blocks_threshold", "busy.active_prefill_tokens_threshold",
		"busy.active_prefill_tokens_threshold_frac", "score.tiers.shared", "cost.shared_cache_multiplier",
	}
	for _, key := range unset {
		if !strings.Contains(page, "\n| `"+key+"` | unset |") {
			t.Errorf("no row for %s, which is unset by default", key)
		}
	}
	for _, mode := range policy.ModeNames() {
		if !strings.Contains(page, "`"+mode+"`") {
			t.Errorf("no word on mode %s", mode)
		}
	}
	if rows := strings.Count(page, "\n| `"); rows != len(keys)+len(unset) {
		t.Errorf("%d rows for %d keys", rows, len(keys)+len(unset))
	}
}
