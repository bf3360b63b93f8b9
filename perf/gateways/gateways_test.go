// Package gateways tests the configurations of deploy/gateways with the real gateways
// (make check-gateways).
package gateways

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/sim/engine"
)

// patience is how long a test waits for an event before it fails.
const patience = 2 * time.Minute

// deploy is the folder of the configurations under test.
const deploy = "../../deploy/gateways/"

// back is a router with API keys in front of a simulated engine.
type back struct {
	t      *testing.T
	engine *engine.Engine
	port   string // of the serving port
	key    string // of the gateway
	log    string // file of the access log
}

// behind runs a router whose keys are one of a gateway, of the tenant front.
func behind(t *testing.T) *back {
	t.Helper()
	dir := t.TempDir()
	b := &back{t: t, log: filepath.Join(dir, "access.log")}
	var err error
	if b.engine, err = engine.New(engine.Config{DecodeStep: time.Millisecond, RecordRequests: 64}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.engine.Close)
	var id string
	b.key, id = keys.Generate()
	r := &keys.Record{ID: id, Tenant: "front", Scopes: []string{"inference", "models", "act_as"}, Created: time.Now()}
	r.SHA256, _ = keys.Hash(b.key)
	var c router.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Auth.KeysFile = filepath.Join(dir, "keys.json")
	if err := keys.Edit(c.Auth.KeysFile, func([]*keys.Record) ([]*keys.Record, error) {
		return []*keys.Record{r}, nil
	}); err != nil {
		t.Fatal(err)
	}
	c.Router.Listen, c.Router.Admin, c.Router.DrainDelay = "127.0.0.1:0", "127.0.0.1:0", 0
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	c.Router.Backends, c.Log.Access = []string{b.engine.URL()}, b.log
	at, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, b.port, _ = net.SplitHostPort(at.Addr().String())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- at.Run(ctx, context.Background()) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// tool returns the path of an installed program; the test is left out without the programs.
func tool(t *testing.T, pattern string) string {
	t.Helper()
	dir := os.Getenv("GATEWAYS")
	if dir == "" {
		t.Skip("GATEWAYS names no environment with the gateways (make check-gateways)")
	}
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// put writes a file to dir, changed by pairs of old and new texts.
func put(t *testing.T, dir, file string, pairs ...string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(string(text), pairs[i]) {
			t.Fatalf("%s has no %q", file, pairs[i])
		}
	}
	path := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a gateway until the test ends, with its output in the test's log if that fails.
func start(t *testing.T, env []string, path string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(path), out.Bytes()[max(0, out.Len()-16<<10):])
		}
	})
}

// ask sends a request to a gateway and returns the answer's status and body. header is name,
// value, ….
func ask(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(page)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// line is the part of a line of the access log that says who asked.
type line struct{ API, Tenant, User string }

// lines returns the access log but for lists of models, once it has n lines from the mark on.
func (b *back) lines(mark, n int) (all []line) {
	b.t.Helper()
	eventually(b.t, fmt.Sprint(mark+n, " lines in the access log"), func() bool {
		page, _ := os.ReadFile(b.log)
		all = nil
		for text := range strings.Lines(string(page)) {
			var l line
			if json.Unmarshal([]byte(text), &l) == nil && l.API != "models" && l.API != "health" {
				all = append(all, l)
			}
		}
		return len(all) >= mark+n
	})
	return all[mark:]
}

// unseen checks that no engine got a key, or a word of who asked.
func (b *back) unseen(secrets ...string) {
	b.t.Helper()
	for _, r := range b.engine.Requests() {
		for _, secret := range append(secrets, b.key, "X-Cgn-Tenant", "X-Cgn-User") {
			if all := fmt.Sprint(r.Header); strings.Contains(all, secret) {
				b.t.Errorf("the engine gets %q: %s", secret, all)
			}
		}
	}
}

// free returns a free port of 127.0.0.1.
func free(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// issuer signs JWTs.
type issuer struct{ key *rsa.PrivateKey }

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// jwks returns the issuer's public key.
func (i *issuer) jwks() string {
	return fmt.Sprintf(`{"keys":[{"kty":"RSA","kid":"k","alg":"RS256","use":"sig","n":%q,"e":%q}]}`,
		encode(i.key.N.Bytes()), encode(big.NewInt(int64(i.key.E)).Bytes()))
}

// token returns the header Authorization with a JWT of these claims.
func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	for name, v := range map[string]any{"iss": "https://login.example", "aud": "models",
		"exp": time.Now().Add(time.Hour).Unix()} {
		if _, given := claims[name]; !given {
			claims[name] = v
		}
	}
	doc, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	text := encode([]byte(`{"alg":"RS256","kid":"k","typ":"JWT"}`)) + "." + encode(doc)
	sum := sha256.Sum256([]byte(text))
	sign, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + text + "." + encode(sign)
}

const chat = `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`

var stream = strings.Replace(chat, `{`, `{"stream":true,`, 1)

// TestEnvoy checks that the claims of a client's token name tenant and user, and nothing else does.
func TestEnvoy(t *testing.T) {
	path := tool(t, "lib/python3*/site-packages/envoy/_bin/envoy")
	b, dir, port := behind(t), t.TempDir(), free(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	login := &issuer{key}
	if err := os.WriteFile(filepath.Join(dir, "jwks.json"), []byte(login.jwks()), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, dir, deploy+"router-key.yaml", "KEY", b.key)
	conf := put(t, dir, deploy+"envoy.yaml", "port_value: 10000", "port_value: "+port,
		"port_value: 8080", "port_value: "+b.port, "/etc/envoy", dir)
	start(t, nil, path, "-c", conf, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	url := "http://127.0.0.1:" + port
	ada := login.token(t, map[string]any{"tenant": "acme", "email": "ada@acme.example"})
	nobody := login.token(t, map[string]any{"sub": "x"})
	eventually(t, "Envoy and the router are ready", func() bool {
		status, page := ask(t, "GET", url+"/v1/models", "", "Authorization", ada)
		return status == 200 && strings.Contains(page, `"sim"`)
	})
	spoof := []string{"x-cgn-tenant", "globex", "x-cgn-user", "eve", "x-cgn-priority", "9", "x-cgn-node", "n"}
	for i, c := range []struct {
		body   string
		header []string
		want   line
	}{
		{chat, []string{"Authorization", ada}, line{"chat", "acme", "ada@acme.example"}},
		{stream, []string{"Authorization", ada}, line{"chat", "acme", "ada@acme.example"}},
		{chat, append(spoof, "Authorization", ada), line{"chat", "acme", "ada@acme.example"}},
		{chat, append(spoof, "Authorization", nobody), line{"chat", "front", ""}},
	} {
		status, page := ask(t, "POST", url+"/v1/chat/completions", c.body, c.header...)
		if got := b.lines(i, 1)[0]; status != 200 || got != c.want {
			t.Errorf("%v: %d %s, %+v", c.header, status, page, got)
		}
	}
	for what, token := range map[string]string{
		"no token": "", "the key of Envoy": "Bearer " + b.key, "a broken token": ada[:len(ada)-4] + "AAAA",
		"another audience": login.token(t, map[string]any{"aud": "mail"}),
		"an old token":     login.token(t, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
	} {
		if status, page := ask(t, "POST", url+"/v1/chat/completions", chat, "Authorization", token); status != 401 &&
			status != 403 {
			t.Errorf("%s: %d %s", what, status, page)
		}
	}
	b.unseen(ada, "globex", "eve")
}

// TestLiteLLM checks that the team and the user of a LiteLLM key are tenant and user, on each API
// and whatever a client sends.
func TestLiteLLM(t *testing.T) {
	path := tool(t, "bin/litellm")
	b, dir, port := behind(t), t.TempDir(), free(t)
	conf := put(t, dir, deploy+"litellm.yaml", "127.0.0.1:8080", "127.0.0.1:"+b.port,
		"general_settings:", "general_settings:\n  custom_auth: auth.auth")
	put(t, dir, deploy+"cognitora_tenant.py")
	put(t, dir, "auth.py")
	start(t, []string{"CGN_API_KEY=" + b.key, "LITELLM_MASTER_KEY=sk-master", "LITELLM_LOCAL_MODEL_COST_MAP=True"},
		path, "--config", conf, "--host", "127.0.0.1", "--port", port, "--telemetry", "False")
	url := "http://127.0.0.1:" + port
	eventually(t, "LiteLLM is ready", func() bool {
		status, _ := ask(t, "GET", url+"/health/liveliness", "")
		return status == 200
	})
	ada := []string{"Authorization", "Bearer sk-acme-ada@acme.example"}
	spoof := append(ada, "x-cgn-tenant", "globex", "x-cgn-user", "eve")
	const members = `,"extra_headers":{"x-cgn-tenant":"globex","X-Cgn-User":"eve"}` +
		`,"headers":{"x-cgn-tenant":"globex"}}`
	named := line{Tenant: "acme", User: "ada@acme.example"}
	for i, c := range []struct {
		path, body string
		header     []string
		want       line
	}{
		{"/v1/chat/completions", chat, ada, named}, {"/v1/chat/completions", stream, ada, named},
		{"/v1/chat/completions", chat, spoof, named},
		{"/v1/chat/completions", strings.TrimSuffix(chat, "}") + members, spoof, named},
		{"/v1/completions", `{"model":"sim","max_tokens":4,"prompt":"hello"}`, ada, named},
		{"/v1/embeddings", `{"model":"sim","input":"hello"}`, spoof, named},
		{"/v1/responses", `{"model":"sim","input":"hello"}`, spoof, named},
		{"/v1/messages", chat, spoof, named},
		{"/v1/chat/completions", chat, []string{"Authorization", "Bearer sk--", "x-cgn-tenant", "globex"},
			line{Tenant: "front"}},
	} {
		status, page := ask(t, "POST", url+c.path, c.body, c.header...)
		got := b.lines(i, 1)[0]
		if got.API = ""; status != 200 || got != c.want {
			t.Errorf("%s %v: %d %s, %+v", c.path, c.header, status, page, got)
		}
	}
	status, page := ask(t, "POST", url+"/v1/chat/completions", chat, "Authorization", "Bearer x-y-z")
	if status == 200 {
		t.Errorf("a key that LiteLLM does not know: %d %s", status, page)
	}
	b.unseen("globex", "eve")
}
