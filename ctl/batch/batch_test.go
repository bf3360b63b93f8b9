package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/sim/engine"
)

// childOf makes the test binary cgn-ctl, with these arguments.
const childOf = "TEST_BATCH_CHILD"

func TestMain(m *testing.M) {
	if args := os.Getenv(childOf); args != "" {
		a := &cli.App{Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
		root := cli.Root(a, Command(a))
		root.SetArgs(strings.Split(args, "\n"))
		os.Exit(cli.Run(root, os.Stderr))
	}
	ctltest.Main(m)
}

// fleet is a router before a simulated engine.
type fleet struct {
	url    string
	engine *engine.Engine
}

// newFleet runs a fleet. tweak changes the router's settings.
func newFleet(t *testing.T, e engine.Config, tweak func(*router.Config)) *fleet {
	t.Helper()
	sim, err := engine.New(e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	var c router.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Router.Listen, c.Router.Admin, c.Router.DrainDelay = "127.0.0.1:0", "127.0.0.1:0", 0
	c.Logger = slog.New(slog.DiscardHandler)
	c.Router.Backends = []string{sim.URL()}
	tweak(&c)
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, context.Background()) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f := &fleet{"http://" + r.Addr().String(), sim}
	f.awaitHealthy(t)
	return f
}

func (f *fleet) awaitHealthy(t *testing.T) {
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(5 * time.Millisecond) {
		resp, err := http.Get(f.url + "/health")
		if err == nil && errors.Join(resp.Body.Close()) == nil && resp.StatusCode == http.StatusOK {
			return
		}
	}
	t.Fatal("the router has no healthy engine")
}

// line is a request for the model sim.
func line(id string, tokens int) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":{"model":"sim",`+
		`"max_tokens":%d,"messages":[{"role":"user","content":"<b>%s</b>"}]}}`, id, tokens, id)
}

// file writes lines to a file of requests.
func file(t *testing.T, lines ...string) (name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func many(n, tokens int) (lines []string) {
	for i := range n {
		lines = append(lines, line(fmt.Sprint("r-", i), tokens))
	}
	return lines
}

// ctl runs the command with the summary as JSON.
func ctl(t *testing.T, ctx context.Context, env map[string]string, args ...string) (s Summary, progress string,
	err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := ctltest.Root(Command, &out, &errOut, func(name string) string { return env[name] })
	root.SetArgs(append([]string{"batch", "run", "-o", "json"}, args...))
	root.SetContext(ctx)
	err = root.Execute()
	if out.Len() > 0 {
		if bad := json.Unmarshal(out.Bytes(), &s); bad != nil {
			t.Error(bad)
		}
	}
	return s, errOut.String(), err
}

// records reads a file of records.
func records(t *testing.T, name string) (all []record) {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

// once fails unless the file answers each of n requests once.
func once(t *testing.T, name string, n int) {
	t.Helper()
	var ids []string
	for _, r := range records(t, name) {
		if !r.good() {
			t.Errorf("%+v is no answer", r)
		}
		ids = append(ids, r.CustomID)
	}
	slices.Sort(ids)
	if len(ids) != n || len(slices.Compact(ids)) != n {
		t.Errorf("%d answers for %d of %d requests", len(ids), len(slices.Compact(ids)), n)
	}
}

// TestRun sends a file of which two requests fail, and sends it again.
func TestRun(t *testing.T) {
	f := newFleet(t, engine.Config{Speed: 100}, func(*router.Config) {})
	name := file(t, append(many(40, 4),
		`{"custom_id":"bad","method":"POST","url":"/v1/chat/completions","body":{"model":"none","messages":[]}}`, "",
		`{"custom_id":"odd","method":"POST","url":"/v1/nothing","body":{}}`)...)
	out, failed := strings.Replace(name, ".jsonl", ".out.jsonl", 1), strings.Replace(name, ".jsonl", ".errors.jsonl", 1)
	s, progress, err := ctl(t, t.Context(), nil, name, "--url", f.url)
	if err == nil || !strings.Contains(err.Error(), "2 of 42 requests failed: "+failed) || s.Requests != 42 ||
		s.Answered != 40 || s.Failed != 2 || s.Unanswered != 0 || s.Out != out || s.Errors != failed {
		t.Errorf("%+v, %v", s, err)
	}
	ctltest.Want(t, progress, "42 of 42 done", "2 failed")
	once(t, out, 40)
	a := records(t, out)[0]
	if a.Response.StatusCode != 200 || a.Response.RequestID == "" || !strings.HasPrefix(a.ID, "batch_req_") ||
		!strings.Contains(string(a.Response.Body), `"chat.completion"`) {
		t.Errorf("%+v", a)
	}
	for _, r := range records(t, failed) {
		if r.Error != nil || r.Response == nil || r.Response.StatusCode != 404 ||
			!strings.Contains(string(r.Response.Body), `"error"`) {
			t.Errorf("%+v", r)
		}
	}
	sent := f.engine.Stats().Completed
	s, _, err = ctl(t, t.Context(), nil, name, "--url", f.url)
	if err == nil || s.Before != 40 || s.Answered != 0 || s.Failed != 2 || f.engine.Stats().Completed != sent {
		t.Errorf("%+v, %v; the engine got %d and then %d", s, err, sent, f.engine.Stats().Completed)
	}
	if got := records(t, failed); len(got) != 2 {
		t.Errorf("errors of both runs: %v", got)
	}
	if err := os.WriteFile(name, []byte(strings.Join(many(41, 4), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, _, err = ctl(t, t.Context(), nil, name, "--url", f.url); err != nil || s.Before != 40 || s.Answered != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := os.Stat(failed); err == nil {
		t.Error("errors of a former run are left")
	}
	// Nothing is sent if everything is answered, so nobody has to serve.
	if s, _, err = ctl(t, t.Context(), nil, name, "--url", "http://127.0.0.1:1"); err != nil || s.Before != 41 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestWrongFiles checks that the error names the line and the mistake, and that nothing is sent.
func TestWrongFiles(t *testing.T) {
	good := line("a", 1)
	for text, want := range map[string]string{
		"":                              "has no request",
		good + "\n" + good:              `a.jsonl:2: custom_id "a" is in a line above too`,
		good + "\n\n{":                  "a.jsonl:3: is no JSON object",
		"[]":                            "a.jsonl:1: is no JSON object",
		good + good:                     "a.jsonl:1: is no JSON object",
		`{"method":"POST"}`:             "custom_id is missing",
		`{"custom_id":7}`:               "custom_id is 7; it must be a text",
		`{"custom_id":""}`:              `custom_id is ""; it must be a text`,
		`{"custom_id":null}`:            "custom_id is null; it must be a text",
		`{"custom_id":"a"}`:             "method is missing",
		with("method", `"GET"`):         `method is "GET"; it must be "POST"`,
		with("url", `"/health"`):        `url is "/health"; it must be a path`,
		with("url", `"/v1/../x"`):       "it must be a path",
		with("url", `"/v1/x?a=b"`):      "it must be a path",
		with("url", `"http://x/v1"`):    "it must be a path",
		with("body", "null"):            "body is no JSON object",
		with("body", "[]"):              "body is no JSON object",
		with("body", `{"stream":true}`): "body.stream is true; leave it out",
		`{"custom_id":"a","method":"POST","url":"/v1/x"}`:        "body is missing",
		with("custom_id", `"`+strings.Repeat("x", mostID+1)+`"`): "custom_id is",
	} {
		name := file(t, text)
		_, _, err := ctl(t, t.Context(), nil, name, "--url", "http://127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(ctltest.Hint(err), "nothing was sent") {
			t.Errorf("%.80s: %v, hint %q", text, err, ctltest.Hint(err))
		}
		if made, _ := filepath.Glob(name + "*.*"); len(made) > 0 {
			t.Errorf("%v was made", made)
		}
	}
	_, _, err := ctl(t, t.Context(), nil, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a directory: %v", err)
	}
}

// with returns a good line with another member.
func with(member, value string) string {
	l := map[string]string{"custom_id": `"a"`, "method": `"POST"`, "url": `"/v1/chat/completions"`, "body": "{}"}
	l[member] = value
	return fmt.Sprintf(`{"custom_id":%s,"method":%s,"url":%s,"body":%s}`, l["custom_id"], l["method"], l["url"],
		l["body"])
}

// TestKeys checks that a refused key ends the run, and where a key is taken from.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	store, text := filepath.Join(dir, "keys.json"), filepath.Join(dir, "key")
	good, id := keys.Generate()
	r := &keys.Record{ID: id, Tenant: "t", Scopes: []string{"inference"}, Created: time.Now()}
	r.SHA256, _ = keys.Hash(good)
	only := func([]*keys.Record) ([]*keys.Record, error) { return []*keys.Record{r}, nil }
	if err := errors.Join(keys.Edit(store, only), os.WriteFile(text, []byte(good+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, engine.Config{Speed: 100}, func(c *router.Config) { c.Auth.KeysFile = store })
	bad, _ := keys.Generate()
	for what, tc := range map[string]struct {
		env, file string
		works     bool
	}{"none": {}, "unknown": {env: bad}, "variable": {env: good, works: true},
		"file": {env: bad, file: text, works: true}} {
		name := file(t, many(3, 1)...)
		args := []string{name, "--url", f.url}
		if tc.file != "" {
			args = append(args, "--api-key-file", tc.file)
		}
		s, _, err := ctl(t, t.Context(), map[string]string{keyVariable: tc.env}, args...)
		if tc.works && (err != nil || s.Answered != 3) {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
		if !tc.works && (err == nil || !strings.Contains(err.Error(), "refuses the API key") ||
			!strings.Contains(ctltest.Hint(err), keyVariable) || strings.Contains(err.Error(), bad)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
