package top

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestTop(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": ctltest.FleetPage,
		"/metrics": ctltest.MetricsPage})
	out, err := ctl(t, nil, "top", "--admin", url)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "2 nodes, 5 requests in flight, 9 blocks indexed; STALE", "7 requests",
		"40 % of prompt tokens cached", "2/64", "3/-", "+0.125", "refused")
	out, err = ctl(t, nil, "top", "--admin", url, "-o", "json")
	var l Look
	if err := errors.Join(err, json.Unmarshal([]byte(out), &l)); err != nil || l.Router.Requests != 7 ||
		len(l.Fleet.Nodes) != 2 {
		t.Errorf("%v in\n%s", err, out)
	}
}

// TestHelpOfSlow checks that the help says when a node becomes slow, and when it is not any more.
func TestHelpOfSlow(t *testing.T) {
	help, err := ctl(t, nil, "top", "--help")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, strings.Join(strings.Fields(help), " "), "slow: prefill 5.0x its like: took at least twice as "+
		"long as at nodes of its kind, and no answer has shown less than 1.5 times since")
}

func TestTopNeedsAHost(t *testing.T) {
	for _, at := range []string{"http://", "http:///", "/"} {
		if _, err := ctl(t, nil, "top", "--admin", at); err == nil ||
			err.Error() != fmt.Sprintf("--admin %q: has no host; use HOST:PORT, such as 127.0.0.1:9091", at) {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// TestTopNamesSlowNodes checks the columns SLOWDOWN and NOTE, and that slow and stalled nodes come
// before others.
func TestTopNamesSlowNodes(t *testing.T) {
	page := `{"nodes":[{"id":"a","state":"healthy","eligible":true,
"speed":{"prefill":{"slowdown":1.02,"answers":90,"age_s":1}}},
{"id":"b","state":"healthy","eligible":true},
{"id":"c","state":"healthy","eligible":true,"last_error":"refused",
"speed":{"prefill":{"slowdown":5,"answers":90,"age_s":1},
"decode":{"slowdown":1.1,"answers":900,"age_s":1},"slow":"prefill 5.0x its like"}},
{"id":"d","state":"healthy","eligible":true,"speed":{"slow":"decode 3.0x its like, 12m ago"}},
{"id":"e","state":"healthy","eligible":true,"speed":{"slow":"decode 3.0x its like","silent_s":15.2}},
{"id":"f","state":"healthy","eligible":true,"speed":{"silent_s":0.256}},
{"id":"g","state":"healthy","eligible":true,"role":"prefill"},
{"id":"h","state":"healthy","eligible":true,"role":"both"}]}`
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": page, "/metrics": ""})
	out, err := ctl(t, nil, "top", "--admin", url)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	for i, want := range []struct{ node, slowdown, note string }{
		{"c", " 5.00/1.10 ", "(refused); slow: prefill 5.0x its like"},
		{"d", " - ", "slow: decode 3.0x its like, 12m ago"},
		{"e", " - ", "slow: decode 3.0x its like; stalled: no token for 15s"},
		{"f", " - ", " stalled: no token for 250ms"},
		{"a", " 1.02/- ", " -"},
		{"b", " - ", " -"},
		{"g", " - ", " role prefill"},
		{"h", " - ", " -"},
	} {
		line := strings.TrimRight(lines[3+i], " ")
		if !strings.HasPrefix(line, want.node+" ") || !strings.Contains(line, want.slowdown) ||
			!strings.HasSuffix(line, want.note) || want.note == " -" && strings.Contains(line, "slow") {
			t.Errorf("%q, want %+v", line, want)
		}
	}
}

func TestRatesBetweenTwoLooks(t *testing.T) {
	before := counters{Requests: 100, Completion: 50}
	if d := (counters{Requests: 130, Completion: 10}).minus(before); d.Requests != 30 || d.Completion != 10 {
		t.Errorf("got %+v; a counter that went back was reset", d)
	}
}
