package router_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
)

// isolated is a tweak for a router that keeps tenants or keys apart.
func isolated(t *testing.T, by string) func(*router.Config) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("0123456789abcdef", 2)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *router.Config) { c.Auth.Isolation, c.Auth.IsolationSecretFile = by, file }
}

func tenant(name string) func(*keys.Record) { return func(r *keys.Record) { r.Tenant = name } }

// spied is what a client can see of a prompt: the tokens that its engine had cached, the blocks
// that the router believed cached, and the node that it picked.
type spied struct {
	cached, overlap int
	node            string
}

// spyOn asks a prompt with a key.
func (s *site) spyOn(prompt, more, key string, header ...string) (saw spied) {
	s.t.Helper()
	r := s.chat(chatBody(prompt, more), append(bearer(key), header...)...)
	mustAll(s.t, prompt[:20], []*reply{r})
	_, held := cached(s.t, r)
	fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/", &saw.overlap)
	saw.cached, saw.node = int(held), r.node()
	return saw
}

// TestAnothersPromptByItsTime is attack 54: a tenant asks what another one may have asked, and sees
// whether the engine had it cached. It checks that the attack works without isolation, and that
// with isolation neither the engine nor the choice of the node tells anything.
func TestAnothersPromptByItsTime(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"none", "tenant", "key"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			k := newKeyring(t)
			victim, id := k.add()
			colleague, _ := k.add()
			spy, _ := k.add(tenant("spies"))
			s := serve(t, simulate(t, 4), scored, k.locked, isolated(t, by))
			for i := range 6 {
				secret, other := document(i, 6000), document(100+i, 6000)
				if s.spyOn(secret, plain, victim); s.spyOn(secret, plain, victim).cached < 1000 {
					t.Fatal("the victim's own prompt is not cached")
				}
				asked, fresh := s.spyOn(secret, plain, spy), s.spyOn(other, plain, spy)
				if shown := asked.cached > fresh.cached || asked.overlap > fresh.overlap; shown != (by == "none") {
					t.Errorf("the spy sees %+v of a prompt that was asked, and %+v of another", asked, fresh)
				}
				if saw := s.spyOn(secret, plain, colleague); saw.cached > 1000 != (by != "key") {
					t.Errorf("a key of the same tenant sees %+v", saw)
				}
			}
			salts := map[string]bool{}
			for _, e := range s.engines {
				for _, r := range e.Requests() {
					salts[saltOf(t, r.Body)] = r.Method == "POST"
				}
			}
			delete(salts, "")
			if want := map[string]int{"none": 0, "tenant": 2, "key": 3}[by]; len(salts) != want {
				t.Errorf("%d salts, want %d: %v", len(salts), want, salts)
			}
			for salt := range salts {
				if strings.Contains(salt, id) || strings.Contains(salt, "acme") {
					t.Errorf("the salt %s names its client", salt)
				}
				stolen := plain + `,"cache_salt":"` + salt + `"`
				if saw := s.spyOn(document(0, 6000)+"!", stolen, spy); saw.cached > 0 || saw.overlap > 0 {
					t.Errorf("with the stolen salt the spy sees %+v", saw)
				}
			}
		})
	}
}

func saltOf(t *testing.T, body []byte) string {
	t.Helper()
	var doc struct {
		Salt string `json:"cache_salt"`
	}
	if len(body) > 0 && json.Unmarshal(body, &doc) != nil {
		t.Fatalf("the engine got %s", body)
	}
	return doc.Salt
}

// TestChoicesTellNothing checks that what a tenant asks changes nothing in how the router would
// choose a node for the same prompt of another tenant, nor for the same id of a session.
func TestChoicesTellNothing(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"none", "tenant"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			k := newKeyring(t)
			victim, _ := k.add()
			s := serve(t, simulate(t, 4), affine("hard"), k.locked, isolated(t, by),
				func(c *router.Config) { c.Router.Mode = "score" })
			moved, known, ways := 0, 0, 0
			for i := range 8 {
				prompt, session := document(i, 6000), fmt.Sprint("session ", i)
				as := func(tenant string) (e explanation) {
					s.t.Helper()
					body := strings.NewReader(chatBody(prompt, ""))
					req, _ := http.NewRequest("POST", s.admin+"/debug/route?tenant="+tenant, body)
					req.Header.Set("x-cgn-session-id", session)
					resp, err := s.client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					if page, err := io.ReadAll(resp.Body); err != nil || json.Unmarshal(page, &e) != nil {
						t.Fatalf("%v: %s", err, page)
					}
					return e
				}
				before := as("spies")
				saw := s.spyOn(prompt, plain, victim, "x-cgn-session-id", session)
				after := as("spies")
				if after.Winner != before.Winner || after.Why != before.Why {
					moved++
				}
				for i, c := range after.Candidates {
					known += c.Matched + c.Coming - before.Candidates[i].Matched
				}
				if own := as("acme"); own.Winner != saw.node || own.Candidates[0].Matched+own.Candidates[1].Matched+
					own.Candidates[2].Matched+own.Candidates[3].Matched == 0 {
					t.Errorf("the tenant's own prompt goes to %s, its last one went to %s: %+v", own.Winner, saw.node, own)
				}
				if before.Winner != saw.node {
					ways++
				}
			}
			if shown := moved > 0 || known > 0; shown != (by == "none") {
				t.Errorf("%d of 8 choices changed, and %d blocks are believed", moved, known)
			}
			if by == "tenant" && ways == 0 {
				t.Error("two tenants' prompts go the same ways")
			}
		})
	}
}

// TestEveryAPIIsSalted checks that all requests that compute a prompt keep it apart.
func TestEveryAPIIsSalted(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	victim, _ := k.add()
	spy, _ := k.add(tenant("spies"))
	s := serve(t, simulate(t, 1), k.locked, isolated(t, "tenant"))
	text := document(1, 4000)
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody(text, plain),
		"/v1/completions":      fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":4}`, text),
		"/v1/responses":        fmt.Sprintf(`{"model":"sim","input":%q,"max_output_tokens":4}`, text),
		"/v1/messages":         fmt.Sprintf(`{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, text),
		"/v1/embeddings":       fmt.Sprintf(`{"model":"sim","input":%q}`, text),
	} {
		last := ""
		for who, key := range map[string]string{"the victim": victim, "the spy": spy} {
			mustAll(t, path+" of "+who, []*reply{s.post(path, body, bearer(key)...)})
			salt := saltOf(t, lastTo(t, s.engines[0], path).Body)
			if len(salt) != 32 || salt == last {
				t.Errorf("%s of %s has the salt %q", path, who, salt)
			}
			last = salt
		}
	}
	var made struct{ ID string }
	r := s.post("/v1/responses", `{"model":"sim","input":"hello"}`, bearer(victim)...)
	if err := json.Unmarshal(r.body, &made); err != nil || made.ID == "" {
		t.Fatalf("%v", r)
	}
	mustAll(t, "a stored response", []*reply{s.ask("GET", "/v1/responses/"+made.ID, "", bearer(victim)...)})
	if got := lastTo(t, s.engines[0], "/v1/responses/"+made.ID); len(got.Body) > 0 {
		t.Errorf("a GET has the body %s", got.Body)
	}
	counted := s.post("/tokenize", `{"model":"sim","prompt":"hello"}`, bearer(spy)...)
	if counted.status != 200 || saltOf(t, lastTo(t, s.engines[0], "/tokenize").Body) != "" {
		t.Errorf("a request that computes nothing has a salt, or %v", counted)
	}
}

// TestEnginesWithoutSalts checks that an engine that knows no salt reuses no prompt, and that the
// router says so; and that it says of which engines nobody knows.
func TestEnginesWithoutSalts(t *testing.T) {
	t.Parallel()
	bodies := make(chan string, 16)
	owned := func(by string) string {
		b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost:
				page, _ := io.ReadAll(r.Body)
				bodies <- string(page)
				io.WriteString(w, `{"choices":[]}`)
			case r.URL.Path == "/v1/models":
				fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","owned_by":%q}]}`, cmp.Or(by, "x"), by)
			}
		}))
		t.Cleanup(b.Close)
		return b.URL
	}
	k := newKeyring(t)
	key, _ := k.add()
	s := serve(t, nil, k.locked, isolated(t, "tenant"), func(c *router.Config) {
		c.Router.Backends = []string{owned("llamacpp") + ",id=llama", owned("") + ",id=odd"}
	})
	eventually(t, "both are eligible", func() bool { return s.eligible() == 2 })
	mustAll(t, "llama.cpp", []*reply{s.chat(`{"model":"llamacpp","messages":[],"cache_prompt":true}`, bearer(key)...)})
	if body := <-bodies; body != `{"model":"llamacpp","messages":[],"cache_prompt":false}` {
		t.Errorf("llama.cpp gets %s", body)
	}
	mustAll(t, "another", []*reply{s.chat(`{"model":"x","messages":[]}`, bearer(key)...)})
	if body := <-bodies; len(saltOf(t, []byte(body))) != 32 {
		t.Errorf("an engine of an unknown kind gets %s", body)
	}
	problems := s.problems()
	for _, want := range []string{"llama.cpp knows no cache_salt", "its engine's kind is unknown"} {
		if !strings.Contains(problems, want) {
			t.Errorf("nothing says %q: %s", want, problems)
		}
		eventually(t, "the log says "+want, func() bool { return s.log.count(want) > 0 })
	}
}

// TestIsolationIsChecked checks the errors of its settings.
func TestIsolationIsChecked(t *testing.T) {
	file := func(mode os.FileMode, bytes int) string {
		name := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(name, []byte(strings.Repeat("s", bytes)), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	k := newKeyring(t)
	k.add()
	for want, tweak := range map[string]func(*router.Config){
		"auth.isolation: needs to know whose": func(c *router.Config) {
			c.Auth.KeysFile, c.Auth.IsolationSecretFile = "", file(0o600, 32)
		},
		"auth.isolation_secret_file: is needed": func(c *router.Config) {},
		"can read it or change it":              func(c *router.Config) { c.Auth.IsolationSecretFile = file(0o644, 32) },
		"has 31 bytes, and a secret has at least 32": func(c *router.Config) {
			c.Auth.IsolationSecretFile = file(0o600, 31)
		},
		"no such file": func(c *router.Config) { c.Auth.IsolationSecretFile = "/nowhere/secret" },
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends = []string{"http://127.0.0.1:1"}
		c.Auth.KeysFile, c.Auth.Isolation = k.file, "tenant"
		tweak(&c)
		err := config.Check(&c)
		if err == nil {
			err = c.Examine()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
		if r, err := router.New(c); err == nil {
			r.Close()
			t.Errorf("%s: the router starts", want)
		}
	}
}
