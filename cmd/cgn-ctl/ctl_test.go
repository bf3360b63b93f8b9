package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// ctl runs one command line and returns what it wrote.
func ctl(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot(&out, io.Discard, func(name string) string { return env[name] })
	root.SetArgs(args)
	root.SetContext(t.Context())
	err := root.Execute()
	return out.String(), err
}

const explained = `{"model":"m","api":"chat","mode":"score","prompt_blocks":4,"winner":"b","why":"highest score",
"candidates":[{"node":"a","eligible":false,"reason":"cordoned","matched":0,"total":4},
{"node":"b","eligible":true,"matched":1,"coming":3,"total":4,"overlap":0.75,"waiting":1.25,"load":1,` +
	`"power":0,"capacity":0.5,"score":0.7125,"in_flight":2,
"in_flight_of_others":5,"max_concurrent":64},
{"node":"c","eligible":true,"matched":2,"total":4,"in_flight":1}]}`

func TestRouteExplain(t *testing.T) {
	url, last, body := ctltest.AdminPort(t, map[string]string{"/debug/route": explained})
	out, err := ctl(t, map[string]string{"CGN_ADMIN": url}, "route", "explain", "--prompt", "hi", "--system", "be",
		"--model", "m")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "model m, chat, 4 blocks of prompt, mode score", "no candidate: cordoned", "->  b",
		"1+2/4", "1.250", "0.713", "2+5/64", "2/4", "1/-", "b: highest score")
	if last.Method != "POST" || last.URL.RawQuery != "api=chat" {
		t.Errorf("sent %s ?%s", last.Method, last.URL.RawQuery)
	}
	if *body != `{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hi"}],"model":"m"}` {
		t.Errorf("sent %s", *body)
	}
}

func TestRouteExplainOfAFileSendsItAsItIs(t *testing.T) {
	url, last, body := ctltest.AdminPort(t, map[string]string{"/debug/route": explained})
	name := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(name, []byte(`{"model": "x",  "input": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, nil, "route", "explain", "--admin", strings.TrimPrefix(url, "http://"), "--file", name, "--api",
		"responses", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if *body != `{"model": "x",  "input": 1}` || last.URL.RawQuery != "api=responses" {
		t.Errorf("sent %s ?%s", *body, last.URL.RawQuery)
	}
	var e struct{ Winner string }
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Winner != "b" {
		t.Errorf("JSON output: %v\n%s", err, out)
	}
}

func TestAdminErrorsSayWhatToDo(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t,
		map[string]string{"/debug/route": `{"error":{"message":"model \"x\" is not served here"}}`})
	if _, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "x", "--prompt", "hi"); err == nil ||
		!strings.Contains(err.Error(), `model "x" is not served here (HTTP 404`) {
		t.Errorf("got %v", err)
	}
	if _, err := ctl(t, nil, "top", "--once", "--admin", url); err == nil ||
		!strings.Contains(ctltest.Hint(err), "admin port") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if _, err := ctl(t, nil, "top", "--once", "--admin", ln.Addr().String()); err == nil ||
		!strings.Contains(ctltest.Hint(err), "--admin") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
}

const fleetPage = `{"rev":3,"stale":true,"nodes":[{"id":"n1","address":"http://h:1","models":["m"],"state":"healthy","eligible":true,
"in_flight":2,"max_concurrent":64,"signals":{"from":"metrics","queue_depth":1,"sm_pct":50,"power_watts":300}},` +
	`{"id":"n2","address":"http://h:2","models":["m"],"state":"open","eligible":false,"reason":"refused",` +
	`"in_flight":3}],"models":[],"index_blocks":9}`

const metricsPage = `# TYPE cgn_router_requests_total counter
cgn_router_requests_total{api="chat",model="m",code="200"} 5
cgn_router_requests_total{api="chat",model="m",code="404"} 2
# TYPE cgn_router_prompt_tokens_total counter
cgn_router_prompt_tokens_total{model="m"} 100
# TYPE cgn_router_cached_tokens_total counter
cgn_router_cached_tokens_total{model="m"} 40
# TYPE cgn_router_prediction_error_ratio histogram
cgn_router_prediction_error_ratio_bucket{node="n1",le="+Inf"} 4
cgn_router_prediction_error_ratio_sum{node="n1"} 0.5
cgn_router_prediction_error_ratio_count{node="n1"} 4
`

func TestTop(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": fleetPage, "/metrics": metricsPage})
	out, err := ctl(t, nil, "top", "--admin", url)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "2 nodes, 5 requests in flight, 9 blocks indexed; STALE", "7 requests",
		"40 % of prompt tokens cached", "2/64", "3/-", "+0.125", "refused")
	out, err = ctl(t, nil, "top", "--admin", url, "-o", "json")
	var l look
	if err := errors.Join(err, json.Unmarshal([]byte(out), &l)); err != nil || l.Router.Requests != 7 ||
		len(l.Fleet.Nodes) != 2 {
		t.Errorf("%v in\n%s", err, out)
	}
}

func TestRatesBetweenTwoLooks(t *testing.T) {
	before := counters{Requests: 100, Completion: 50}
	if d := (counters{Requests: 130, Completion: 10}).minus(before); d.Requests != 30 || d.Completion != 10 {
		t.Errorf("got %+v; a counter that went back was reset", d)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"version", "-o", "yaml"}, {"route", "explain"}, {"cluster", "cordon"}, {"up", "--engines", "0"},
		{"up", "--routers", "99"}, {"up", "--model", "/does/not/exist.gguf"}, {"up", "--backend", "http://h", "--engines", "2"},
		{"top", "--interval", "1ms"},
	} {
		if _, err := ctl(t, nil, args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := ctl(t, nil, "version", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, `"version"`, `"commit"`)
	if out, err = ctl(t, nil, "--version"); err != nil || !strings.HasPrefix(out, "cgn-ctl ") {
		t.Errorf("--version: %q, %v", out, err)
	}
}
