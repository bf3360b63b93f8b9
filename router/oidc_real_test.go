package router_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// realProvider is the provider of perf/oidc.
type realProvider struct {
	t      *testing.T
	issuer string
	server *exec.Cmd
}

// startProvider runs the provider, for which make check-oidc has installed the packages.
func startProvider(t *testing.T) *realProvider {
	t.Helper()
	dir := os.Getenv("OIDC_PROVIDER")
	if dir == "" {
		t.Skip("make check-oidc runs it, with a real provider")
	}
	p := &realProvider{t: t, server: exec.Command("node", filepath.Join(dir, "provider.mjs"))}
	out, err := p.server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p.issuer = strings.TrimSpace(line)
	return p
}

func (p *realProvider) stop() {
	p.server.Process.Kill()
	p.server.Wait()
}

// issued is the answer of the provider's token endpoint.
type issued struct {
	Access string `json:"access_token"`
	ID     string `json:"id_token"`
}

// ask asks the token endpoint as a client.
func (p *realProvider) ask(client string, form url.Values) (all issued) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.issuer+"/token",
		strings.NewReader(form.Encode()))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(client, "secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil || all.Access == "" {
		p.t.Fatalf("%s: %v, %v", resp.Status, all, err)
	}
	return all
}

// machine returns the access token of a client without a user, for a resource; "": an opaque one.
func (p *realProvider) machine(client, resource string) string {
	form := url.Values{"grant_type": {"client_credentials"}}
	if resource != "" {
		form.Set("resource", resource)
	}
	return p.ask(client, form).Access
}

// login returns the tokens of a user who logs in to the client web and consents.
func (p *realProvider) login(user string) issued {
	p.t.Helper()
	const back = "https://app.test/back"
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	code := ""
	browser := &http.Client{Jar: jar, CheckRedirect: func(next *http.Request, _ []*http.Request) error {
		if next.URL.Host == "app.test" {
			code = next.URL.Query().Get("code")
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := browser.Get(p.issuer + "/auth?" + url.Values{
		"client_id": {"web"}, "response_type": {"code"}, "scope": {"openid ask"}, "redirect_uri": {back},
		"resource": {"urn:cgn:router"}, "nonce": {"n-0123456789"},
	}.Encode())
	form := regexp.MustCompile(`action="([^"]*/interaction/[^"]*)"[^>]*method="post"`)
	prompt := regexp.MustCompile(`name="prompt" value="([a-z]+)"`)
	for range 3 {
		if err != nil {
			p.t.Fatal(err)
		}
		page := new(bytes.Buffer)
		page.ReadFrom(resp.Body)
		resp.Body.Close()
		if code != "" {
			break
		}
		at, which := form.FindSubmatch(page.Bytes()), prompt.FindSubmatch(page.Bytes())
		if at == nil || which == nil {
			p.t.Fatalf("%s: %s", resp.Status, page)
		}
		resp, err = browser.PostForm(string(at[1]), url.Values{
			"prompt": {string(which[1])}, "login": {user}, "password": {"any"},
		})
	}
	return p.ask("web", url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {back}, "resource": {"urn:cgn:router"},
	})
}

// sign makes the provider sign with one key, and list this and other keys.
func (p *realProvider) sign(key, list string) {
	p.t.Helper()
	resp, err := http.Post(fmt.Sprintf("%s/test/keys?sign=%s&list=%s", p.issuer, key, list), "", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
}

// TestRealProvider checks tokens of a certified provider, its keys' rotation, and its end.
func TestRealProvider(t *testing.T) {
	p := startProvider(t)
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Auth.OIDC.Issuer, c.Auth.OIDC.Audience = p.issuer, []string{"urn:cgn:router", "urn:cgn:router:ec"}
		c.Auth.OIDC.TenantName = "org"
		c.Auth.OIDC.Groups = []router.OIDCGroupConfig{
			{Name: "ml", GrantConfig: router.GrantConfig{Scopes: []string{"inference"}}},
			{Name: "ops", GrantConfig: router.GrantConfig{Scopes: []string{"inference", "route.pin"}}},
		}
	})
	body := chatBody("hello", plain)
	ask := func(token string, header ...string) *reply { return s.chat(body, append(bearer(token), header...)...) }
	first, anna := p.machine("batch", "urn:cgn:router"), p.login("anna")
	mustAll(t, "with tokens", []*reply{
		ask(first), ask(p.machine("batch", "urn:cgn:router:ec")), ask(anna.Access, "x-cgn-node", "sim-0"),
	})
	for what, c := range map[string]struct {
		token  string
		status int
		has    string
	}{
		"the ID token":             {anna.ID, 401, "another audience"},
		"an opaque token":          {p.machine("batch", ""), 401, "neither an API key nor a signed token"},
		"a token for another":      {p.machine("batch", "urn:cgn:other"), 401, "another audience"},
		"a token without rights":   {p.machine("stranger", "urn:cgn:router"), 403, "none of its groups"},
		"a token that was changed": {first[:len(first)-20] + "AAAA" + first[len(first)-16:], 401, "signature is wrong"},
	} {
		if r := ask(c.token); r.status != c.status || !bytes.Contains(r.body, []byte(c.has)) {
			t.Errorf("%s: %v", what, r)
		}
	}
	p.sign("b", "a")
	second := p.machine("batch", "urn:cgn:router")
	eventually(t, "a token of the new key counts", func() bool { return ask(second).status == 200 })
	mustAll(t, "with the former key's token", []*reply{ask(first)})
	p.sign("c", "b")
	third := p.machine("batch", "urn:cgn:router")
	eventually(t, "a token of the third key counts", func() bool { return ask(third).status == 200 })
	if r := ask(first); r.status == 200 {
		t.Error("a token of a removed key counts")
	}
	unseen := p.machine("batch", "urn:cgn:router")
	p.stop()
	mustAll(t, "without the provider", []*reply{ask(second), ask(third), ask(unseen)})
}
