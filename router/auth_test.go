package router_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/sim/engine"
)

// keyring is a file of keys.
type keyring struct {
	t    *testing.T
	file string
}

func newKeyring(t *testing.T) *keyring {
	return &keyring{t, filepath.Join(t.TempDir(), "keys.json")}
}

// add adds a key, and returns its text and its id.
func (k *keyring) add(tweak ...func(*keys.Record)) (text, id string) {
	k.t.Helper()
	text, id = keys.Generate()
	r := &keys.Record{ID: id, Tenant: "acme", Scopes: []string{"inference", "models"}, Created: time.Now()}
	r.SHA256, _ = keys.Hash(text)
	for _, f := range tweak {
		f(r)
	}
	k.edit(func(all []*keys.Record) []*keys.Record { return append(all, r) })
	return text, id
}

func (k *keyring) edit(change func([]*keys.Record) []*keys.Record) {
	k.t.Helper()
	err := keys.Edit(k.file, func(all []*keys.Record) ([]*keys.Record, error) { return change(all), nil })
	if err != nil {
		k.t.Error(err)
	}
}

func (k *keyring) revoke(id string) {
	k.t.Helper()
	k.edit(func(all []*keys.Record) []*keys.Record {
		now := time.Now()
		at := slices.IndexFunc(all, func(r *keys.Record) bool { return r.ID == id })
		all[at].Revoked = &now
		return all
	})
}

// locked is a tweak for a router that takes the keys of k.
func (k *keyring) locked(c *router.Config) { c.Auth.KeysFile = k.file }

// adminKey adds a key for the admin port to the keys that c names, and returns it. Without keys it
// returns "".
func adminKey(t *testing.T, c *router.Config) string {
	text, id := keys.Generate()
	r := &keys.Record{ID: id, Tenant: "ops", Scopes: []string{"admin.write"}, Created: time.Now()}
	r.SHA256, _ = keys.Hash(text)
	switch {
	case c.Auth.KeysFile != "":
		(&keyring{t, c.Auth.KeysFile}).edit(func(all []*keys.Record) []*keys.Record { return append(all, r) })
	case c.Auth.KeysEtcd:
		err := dialEtcd(t, c.Etcd.Endpoints[0]).EditAPIKey(t.Context(), id, func([]byte) ([]byte, error) {
			return json.Marshal(r)
		})
		if err != nil {
			t.Fatal(err)
		}
	default:
		return ""
	}
	return text
}

// adminCertificates gives the admin port of a router that takes tokens only the certificates of a
// fleet, and returns their folder; "" for another router.
func adminCertificates(t *testing.T, c *router.Config) (dir string) {
	if c.Auth.OIDC.Issuer == "" || c.Auth.KeysFile != "" {
		return ""
	}
	dir = t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(dir, pki.Router)
	c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	return dir
}

// admitted shows a key to the admin port, unless a request has one.
type admitted struct {
	*http.Transport
	admin, key string
}

func (a *admitted) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == a.admin && req.Header.Get("Authorization") == "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	return a.Transport.RoundTrip(req)
}

func bearer(key string) []string { return []string{"Authorization", "Bearer " + key} }

// TestKeys checks who may ask, and that errors have the envelope of the client's API.
func TestKeys(t *testing.T) {
	t.Parallel()
	k, log := newKeyring(t), filepath.Join(t.TempDir(), "access.log")
	key, id := k.add()
	lists, _ := k.add(func(r *keys.Record) { r.Scopes = []string{"models"} })
	pins, _ := k.add(func(r *keys.Record) { r.Scopes = []string{"inference", "route.pin"} })
	s := serve(t, simulate(t, 2), k.locked, func(c *router.Config) { c.Log.Access = log })
	body := chatBody("hello", plain)
	mustAll(t, "with a key", []*reply{
		s.chat(body, bearer(key)...), s.chat(chatBody("hello", streaming), "x-api-key", key),
		s.ask("GET", "/v1/models", "", bearer(lists)...), s.ask("GET", "/health", ""),
		s.chat(body, append(bearer(pins), "x-cgn-node", "sim-1")...),
	})
	for what, c := range map[string]struct {
		r      *reply
		status int
		has    string
	}{
		"no key":                  {s.chat(body), 401, `"type":"invalid_request_error","param":null,"code":"invalid_api_key"`},
		"a wrong key":             {s.chat(body, bearer("sk-wrong")...), 401, "no API key of this router"},
		"no key, Anthropic":       {s.post("/v1/messages", "{}"), 401, `"type":"authentication_error"`},
		"an unknown path":         {s.post("/v9", "{}"), 401, "invalid_api_key"},
		"the key in the query":    {s.ask("GET", "/v1/models?api_key="+key, ""), 401, "invalid_api_key"},
		"no scope for models":     {s.ask("GET", "/v1/models", "", bearer(pins)...), 403, "lacks the scope models"},
		"no scope for inference":  {s.chat(body, bearer(lists)...), 403, "lacks the scope inference"},
		"no scope to steer":       {s.chat(body, append(bearer(key), "x-cgn-node", "sim-1")...), 403, "route.pin"},
		"a spoofed identity":      {s.chat(body, "x-cgn-tenant", "acme", "x-cgn-key", id), 401, "invalid_api_key"},
		"no scope, by its length": {s.chat(chatBody(strings.Repeat("long ", 50000), plain), bearer(lists)...), 403, "scope"},
	} {
		if c.r.status != c.status || !bytes.Contains(c.r.body, []byte(c.has)) {
			t.Errorf("%s: %v", what, c.r)
		}
		if c.r.status == 401 && !strings.HasPrefix(c.r.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: no WWW-Authenticate", what)
		}
	}
	for _, path := range []string{"/metrics", "/debug/fleet", "/busy_threshold"} {
		_, page := s.get(s.admin + path)
		for _, text := range []string{key, lists, pins} {
			if bytes.Contains(page, []byte(text[13:])) {
				t.Errorf("%s has a key", path)
			}
		}
	}
	for _, e := range s.engines {
		for _, r := range e.Requests() {
			if all := fmt.Sprint(r.Header); strings.Contains(all, "cgn_") {
				t.Errorf("an engine gets a key: %s", all)
			}
		}
	}
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	models := bytes.Count(page, []byte(`"api":"models"`)) // one is admitted, and two are refused
	if !bytes.Contains(page, []byte(`"key":"`+id+`","tenant":"acme"`)) || models != 3 {
		t.Errorf("the access log does not say who asked, and for what; %d lines are about models", models)
	}
	for _, text := range []string{key, lists, pins} {
		if bytes.Contains(page, []byte(text[13:])) || s.log.count(text[13:]) > 0 {
			t.Error("a log has a key")
		}
	}
}

// TestRefusedUploads checks that no memory is taken for the body of a request without identity, and
// that its client gets the refusal while it still sends.
func TestRefusedUploads(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	k.add()
	s := serve(t, simulate(t, 1), k.locked)
	conn := s.dial()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 50<<20)
	waits := s.dial() // sends its body after the answer
	fmt.Fprintf(waits, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 50<<20)
	if resp, err := http.ReadResponse(bufio.NewReader(waits), nil); err != nil || resp.StatusCode != 401 {
		t.Fatalf("before the body: %v, %v", resp, err)
	}
	var sent atomic.Int64
	var sending sync.WaitGroup
	sending.Go(func() {
		for piece := make([]byte, 64<<10); sent.Load() < 50<<20; sent.Add(int64(len(piece))) {
			if _, err := conn.Write(piece); err != nil {
				return
			}
		}
	})
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 401 {
		t.Fatalf("%v, %v", resp, err)
	}
	page, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(page, []byte("invalid_api_key")) {
		t.Errorf("%s, %v", page, err)
	}
	if held := s.metrics().sum("cgn_router_body_bytes"); held != 0 {
		t.Errorf("%v bytes are held", held)
	}
	conn.Close()
	sending.Wait()

	again := s.dial() // a short body is dropped, and the connection goes on
	read := bufio.NewReader(again)
	for range 3 {
		io.WriteString(again, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
		resp, err := http.ReadResponse(read, nil)
		if err != nil || resp.StatusCode != 401 || resp.Close {
			t.Fatalf("%v, %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
}

// TestRefusedHealth checks that /health without a key takes no memory for a body.
func TestRefusedHealth(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, _ := k.add()
	s := serve(t, simulate(t, 1), k.locked)
	for body, status := range map[string]int{
		"Content-Length: 5242880\r\n\r\n": 401, "Transfer-Encoding: chunked\r\n\r\n100000\r\n": 401,
		"Content-Length: 2\r\n\r\n{}": 405, "\r\n": 405,
		"X-Api-Key: " + key + "\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000): 405,
	} {
		conn := s.dial()
		io.WriteString(conn, "POST /health HTTP/1.1\r\nHost: a\r\n"+body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != status {
			t.Errorf("%.60q: %v, %v", body, resp, err)
		}
		if held := s.metrics().sum("cgn_router_body_bytes"); held != 0 {
			t.Errorf("%.60q: %v bytes are held", body, held)
		}
		conn.Close()
	}
}

// TestRefusedExpectation checks that a client that waits for leave to send its body gets the
// refusal instead, and that one with a key gets leave.
func TestRefusedExpectation(t *testing.T) {
	t.Parallel()
	k, log := newKeyring(t), filepath.Join(t.TempDir(), "access.log")
	key, id := k.add()
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Log.Access = log })
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: "
	for auth, want := range map[string]string{"": "HTTP/1.1 401 ", "X-Api-Key: " + key + "\r\n": "HTTP/1.1 100 "} {
		conn := s.dial()
		io.WriteString(conn, head+"5\r\n"+auth+"\r\n")
		read := bufio.NewReader(conn)
		line, err := read.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, want) {
			t.Errorf("%q: %q, %v", auth, line, err)
		}
		if auth == "" {
			page, err := io.ReadAll(read)
			if err != nil || !bytes.Contains(page, []byte("invalid_api_key")) ||
				!bytes.Contains(page, []byte("X-Request-Id")) {
				t.Errorf("%s, %v", page, err)
			}
		}
		conn.Close()
	}
	conn := s.dial() // a request that cannot be read is its sender's all the same
	at := strings.Replace(head, "Expect: 100-continue\r\n", "", 1)
	fmt.Fprintf(conn, "%s%d\r\nX-Api-Key: %s\r\n\r\n", at, 1<<40, key)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 413 {
		t.Errorf("%v, %v", resp, err)
	}
	conn.Close()
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(log)
	if err != nil || !bytes.Contains(page, []byte(`"status":413`)) || !bytes.Contains(page, []byte(`"key":"`+id)) {
		t.Errorf("%s, %v", page, err)
	}
}

// TestRevokedStream checks that a stream ends once its key is revoked, or finishes if the setting
// says so. Keys of a file are read every 2 s.
func TestRevokedStream(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"end", "finish"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			k := newKeyring(t)
			key, id := k.add()
			other, _ := k.add()
			s := serve(t, simulate(t, 1, func(c *engine.Config) { c.DecodeStep = 10 * time.Millisecond }), k.locked,
				func(c *router.Config) { c.Auth.Revoked = what })
			long := chatBody("hello", `,"stream":true,"max_tokens":600`)
			revoked := s.begin("/v1/chat/completions", long, bearer(key)...)
			goesOn := s.begin("/v1/chat/completions", long, bearer(other)...)
			k.revoke(id)
			eventually(t, "the key is refused", func() bool { return s.chat(long, bearer(key)...).status == 401 })
			r := read(revoked)
			if ended := bytes.Contains(r.body, []byte(`"code":"key_revoked"`)); ended != (what == "end") {
				t.Errorf("the stream of the revoked key ends with %s", r.body[max(0, len(r.body)-300):])
			}
			if r := read(goesOn); !bytes.Contains(r.body, []byte("[DONE]")) {
				t.Errorf("the other stream ends with %s", r.body[max(0, len(r.body)-300):])
			}
		})
	}
}

// TestKeysUnderLoad rewrites the file while clients ask: those with a key are never refused.
func TestKeysUnderLoad(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, _ := k.add()
	s := serve(t, simulate(t, 2), k.locked)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if r := s.chat(chatBody(fmt.Sprint("hello ", i), plain), bearer(key)...); r.status != 200 {
					t.Errorf("a good key: %v", r)
					return
				}
				if r := s.chat(chatBody("hello", plain), bearer(strings.ToLower(key))...); r.status != 401 {
					t.Errorf("a bad key: %v", r)
					return
				}
			}
		})
	}
	for range 3 { // each change is seen before the next one
		text, id := k.add()
		status := func() int { return s.chat(chatBody("hi", plain), bearer(text)...).status }
		eventually(t, "a new key counts", func() bool { return status() == 200 })
		k.revoke(id)
		eventually(t, "it is revoked", func() bool { return status() == 401 })
	}
	close(stop)
	asking.Wait()
}

// TestKeysOfEtcd checks that keys of etcd count, that a revoked one ends, and that all count on
// while etcd is away, and after it has come back empty.
func TestKeysOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	client := dialEtcd(t, etcd.endpoint)
	put := func(r *keys.Record) {
		t.Helper()
		doc, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.EditAPIKey(t.Context(), r.ID, func([]byte) ([]byte, error) { return doc, nil }); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Auth.KeysEtcd, c.Etcd.Endpoints = true, []string{etcd.endpoint}
	})
	text, id := keys.Generate()
	r := &keys.Record{ID: id, Tenant: "acme", Scopes: []string{"inference"}, Created: time.Now()}
	r.SHA256, _ = keys.Hash(text)
	put(r)
	status := func() int { return s.chat(chatBody("hello", plain), bearer(text)...).status }
	eventually(t, "the key counts", func() bool { return status() == 200 })
	now := time.Now()
	r.Revoked = &now
	put(r)
	written := time.Now()
	eventually(t, "the key is revoked", func() bool { return status() == 401 })
	t.Logf("the key was refused %v after etcd had its revocation", time.Since(written))
	r.Revoked = nil
	put(r)
	eventually(t, "the key counts again", func() bool { return status() == 200 })
	stale := func() float64 { return s.metrics().sum("cgn_router_api_keys_stale") }
	etcd.stop()
	eventually(t, "etcd is missed", func() bool { return stale() == 1 })
	if got := status(); got != 200 {
		t.Errorf("the key gets %d without etcd", got)
	}
	etcd.start() // empty
	eventually(t, "the loss is told", func() bool { return s.log.count("etcd came back without its data") > 0 })
	if got := status(); got != 200 {
		t.Errorf("the key gets %d once etcd has lost it", got)
	}
}

// TestBadKeys checks that a file that becomes bad is told, and that the keys read last count on. A
// router does not start with a bad file.
func TestBadKeys(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, _ := k.add()
	s := serve(t, simulate(t, 1), k.locked)
	good, err := os.ReadFile(k.file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, k.file, string(good[:len(good)-9]))
	stale := func(want float64) func() bool {
		return func() bool { return s.metrics().sum("cgn_router_api_keys_stale") == want }
	}
	eventually(t, "the file is told to be bad", stale(1))
	if _, page := s.get(s.admin + "/debug/fleet"); !bytes.Contains(page, []byte("the JSON ends too early")) {
		t.Error("/debug/fleet does not say why")
	}
	if r := s.chat(chatBody("hello", plain), bearer(key)...); r.status != 200 {
		t.Errorf("the key read last: %v", r)
	}
	c := settings(t, s.log)
	k.locked(&c)
	c.Router.Backends = []string{s.engines[0].URL()}
	if _, err := router.New(c); err == nil || !strings.Contains(err.Error(), "auth.keys_file") {
		t.Errorf("a start with a bad file: %v", err)
	}
	write(t, k.file, string(good))
	eventually(t, "the file is good again", stale(0))
	if n := s.metrics().sum("cgn_router_api_keys"); n != 2 { // with that for the admin port
		t.Errorf("%v keys", n)
	}
}
