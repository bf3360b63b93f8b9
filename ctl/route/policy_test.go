package route

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/router/policy"
)

// TestRoutePolicy checks that the command shows the settings, their source, the override of the
// mode, the models' own policies and the refused document.
func TestRoutePolicy(t *testing.T) {
	p, err := policy.Parse([]byte(`{"mode":"cost","max_queue":7,"score":{"epsilon":0.5}}`))
	if err != nil {
		t.Fatal(err)
	}
	page, err := json.Marshal(map[string]any{
		"policy": policy.InForce{
			Mode: "cost", Source: "file /p.json", DocumentMode: "random", ModeBy: "router.mode", Settings: p,
			Refused: &policy.Refusal{Source: "file /p.json", Reason: "mode: refused"},
		},
		"models": []map[string]any{
			{"name": "sim"}, {"name": "large", "mode": "direct", "busy_threshold": map[string]any{
				"active_prefill_tokens_threshold": 5, "active_decode_blocks_threshold": 0.5,
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": string(page)})
	out, err := ctl(t, nil, "route", "policy", "--admin", url)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "cost.temperature", "max_queue", "7", "file /p.json",
		"router.mode overrides mode random of the document", "score.epsilon: no effect in mode cost", "model large",
		"mode direct", "not in force", "file /p.json at", "mode: refused",
		"that were set here win: active_decode_blocks_threshold 0.5, active_prefill_tokens_threshold 5")
	out, err = ctl(t, nil, "route", "policy", "--admin", url, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, `"source": "file /p.json"`, `"epsilon": 0.5`)
	gone, err := json.Marshal(map[string]any{"policy": policy.InForce{Settings: p, Refused: &policy.Refusal{
		Source: "file /p.json", Reason: "the file is gone", Unread: true,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ = ctltest.AdminPort(t, map[string]string{"/debug/fleet": string(gone)})
	if out, err = ctl(t, nil, "route", "policy", "--admin", url); err != nil || strings.Contains(out, "not in force") {
		t.Errorf("%v in\n%s", err, out)
	}
	ctltest.Want(t, out, "not read", "the file is gone; the policy that it had stays in force")
	url, _, _ = ctltest.AdminPort(t, map[string]string{"/debug/fleet": "{}"})
	if out, err := ctl(t, nil, "route", "policy", "--admin", url); err == nil {
		t.Errorf("a router without a policy: %s", out)
	}
}
