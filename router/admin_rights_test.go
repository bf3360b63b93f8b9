package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/ctl/route"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
)

// scopes is a tweak for a key with these scopes.
func scopes(names ...string) func(*keys.Record) { return func(r *keys.Record) { r.Scopes = names } }

// adminAsk is a request to the admin port, and whether it changes something.
type adminAsk struct {
	method, path, body string
	change             bool
}

const raised = `{"model":"sim","active_decode_blocks_threshold":0.9}`

var adminAsks = []adminAsk{
	{"GET", "/metrics", "", false}, {"GET", "/debug/fleet", "", false}, {"GET", "/usage", "", false},
	{"GET", "/debug/pprof/cmdline", "", false},
	{"GET", "/busy_threshold", "", false}, {"POST", "/busy_threshold", `{"model":"sim"}`, false},
	{"POST", "/debug/route", `{"model":"sim","messages":[]}`, false}, {"GET", "/nothing", "", false},
	{"GET", "/healthz/", "", false}, {"GET", "//metrics", "", false},
	{"POST", "/busy_threshold", raised, true}, {"DELETE", "/busy_threshold?model=sim", "", true},
	{"POST", "/adapters/load", `{}`, true}, {"POST", "/adapters/unload", `{}`, true},
	{"PUT", "/healthz", "", true}, {"POST", "/readyz", "", true}, {"POST", "/metrics", "", true},
}

// atAdmin sends a request to the admin port as it is: no header is added, and no redirect followed.
func atAdmin(t *testing.T, c *http.Client, base string, a adminAsk, header ...string) *reply {
	t.Helper()
	req, err := http.NewRequest(a.method, base+a.path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	plainly := http.Client{Timeout: soon, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	if plainly.Transport = c.Transport; c.Transport == nil {
		plainly.Transport = &http.Transport{DisableKeepAlives: true}
	}
	resp, err := plainly.Do(req)
	if err != nil {
		return &reply{err: err}
	}
	return read(resp)
}

// TestAdminAsksForKeys checks that with API keys loopback gives no right at the admin port: each
// request but that of a probe needs a key, and the scope for what it does.
func TestAdminAsksForKeys(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	all, _ := k.add(scopes("inference", "models", "route.pin", "act_as"))
	reads, _ := k.add(scopes("admin.read"))
	writes, id := k.add(scopes("admin.write"))
	s := serve(t, simulate(t, 1), k.locked)
	plainly := &http.Client{}
	for _, path := range []string{"/healthz", "/readyz"} {
		if r := atAdmin(t, plainly, s.admin, adminAsk{method: "GET", path: path}); r.status != 200 {
			t.Errorf("%s without a key: %v", path, r)
		}
	}
	for _, a := range adminAsks {
		for what, c := range map[string]struct {
			header []string
			status int
			has    string
		}{
			"no key":             {nil, 401, "invalid_api_key"},
			"a spoofed identity": {[]string{"x-cgn-key", id, "x-client-cert", "ctl"}, 401, "no API key"},
			"no admin scope":     {bearer(all), 403, "lacks the scope admin."},
			"two keys":           {append(bearer(reads), "x-api-key", writes), 401, "several API keys"},
		} {
			if r := atAdmin(t, plainly, s.admin, a, c.header...); r.status != c.status ||
				!strings.Contains(string(r.body), c.has) {
				t.Errorf("%s %s with %s: %v", a.method, a.path, what, r)
			} else if c.status == 401 && !strings.HasPrefix(r.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s %s with %s: no WWW-Authenticate", a.method, a.path, what)
			}
		}
		refused := func(r *reply) bool { return r.status == 401 || r.status == 403 }
		if r := atAdmin(t, plainly, s.admin, a, bearer(reads)...); r.err != nil || refused(r) != a.change {
			t.Errorf("%s %s with admin.read: %v", a.method, a.path, r)
		}
		if r := atAdmin(t, plainly, s.admin, a, "x-api-key", writes); r.err != nil || refused(r) {
			t.Errorf("%s %s with admin.write: %v", a.method, a.path, r)
		}
	}
	if r := atAdmin(t, plainly, s.admin, adminAsk{method: "DELETE", path: "/busy_threshold?model=sim"},
		append(bearer(writes), "Sec-Fetch-Site", "cross-site")...); r.status != 403 {
		t.Errorf("a change of another site: %v", r)
	}
	if r := s.chat(chatBody("hello", plain), bearer(writes)...); r.status != 403 {
		t.Errorf("inference with admin.write: %v", r)
	}
	env := map[string]string{"CGN_ADMIN": s.admin, "CGN_API_KEY": reads}
	if _, err := ctltest.Run(t, route.Command, env, "route", "explain", "--prompt", "hello"); err != nil {
		t.Errorf("cgn-ctl with a key: %v", err)
	}
	if s.log.count("by="+id) == 0 || s.log.count(writes[13:]) > 0 {
		t.Errorf("the log does not say which key changed thresholds: %s", s.log.last(5))
	}
}

// TestAdminCertificates checks the rights of roles at an admin port with client certificates, alone
// and beside API keys. Probes need none of both.
func TestAdminCertificates(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if err := pki.Bootstrap(d, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, keyed := range []bool{false, true} {
		t.Run(fmt.Sprint("keys=", keyed), func(t *testing.T) {
			t.Parallel()
			testAdminCertificates(t, keyed, dir, other)
		})
	}
}

func testAdminCertificates(t *testing.T, keyed bool, dir, other string) {
	own, k := pki.FilesIn(dir, pki.Router), newKeyring(t)
	reads, _ := k.add(scopes("admin.read"))
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{simulate(t, 1)[0].URL() + ",id=sim-0"}
		c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
		if keyed {
			k.locked(c)
		}
	})
	plainly := s.admin
	s.admin = "https" + strings.TrimPrefix(s.admin, "http")
	s.client = adminporttest.Client(t, dir, pki.Ctl) // for the end of the test
	ask := func(role pki.Role, a adminAsk, header ...string) *reply {
		t.Helper()
		return atAdmin(t, adminporttest.Client(t, dir, role), s.admin, a, header...)
	}
	fleet, change := adminAsks[1], adminAsk{"POST", "/busy_threshold", raised, true}
	ready := adminAsk{method: "GET", path: "/readyz"}
	eventually(t, "the node is eligible", func() bool { return ask("", ready).status == 200 })
	for role, want := range map[pki.Role][2]int{
		pki.Ctl: {200, 200}, pki.Monitor: {200, 403}, pki.Router: {403, 403}, pki.Agent: {403, 403},
		pki.KVCached: {403, 403}, pki.Etcd: {403, 403},
	} {
		for i, a := range []adminAsk{fleet, change} {
			if r := ask(role, a); r.status != want[i] || want[i] == 403 &&
				!strings.Contains(string(r.body), "certificate_denied") {
				t.Errorf("%s %s with the role %s: %v", a.method, a.path, role, r)
			}
		}
		if r := ask(role, ready); r.status != 200 {
			t.Errorf("a probe with the role %s: %v", role, r)
		}
	}
	none, key := 403, 403 // an admin port without keys takes none
	if keyed {
		none, key = 401, 200
	}
	for what, c := range map[string]struct {
		r    *reply
		want int
	}{
		"neither":                         {ask("", fleet), none},
		"a key":                           {ask("", fleet, bearer(reads)...), key},
		"a key, a certificate of no use":  {ask(pki.Agent, fleet, bearer(reads)...), key},
		"a key, a certificate, both read": {ask(pki.Monitor, change, bearer(reads)...), 403},
		"plain HTTP":                      {atAdmin(t, &http.Client{}, plainly, fleet), 400},
	} {
		if c.r.status != c.want {
			t.Errorf("%s: %v", what, c.r)
		}
	}
	stranger := adminporttest.Client(t, other, pki.Ctl)
	stranger.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	if r := atAdmin(t, stranger, s.admin, fleet); r.err == nil {
		t.Errorf("a certificate of another CA: %v", r)
	}
}

// TestThresholdsAtTheServingPort checks /busy_threshold of clients with the scope route.pin, and
// that a model which a key may not use does not exist there either.
func TestThresholdsAtTheServingPort(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	pins, id := k.add(scopes("route.pin"))
	other, _ := k.add(scopes("route.pin"), func(r *keys.Record) { r.Models = []string{"other*"} })
	asks, _ := k.add()
	s := serve(t, simulate(t, 1), k.locked)
	want := func(key, method, path, body string, status int, has string) {
		t.Helper()
		r := s.ask(method, "/busy_threshold"+path, body, bearer(key)...)
		if r.status != status || !strings.Contains(string(r.body), has) {
			t.Errorf("%s %s %s: %v", method, path, body, r)
		}
	}
	const set = `{"model":"sim","active_decode_blocks_threshold":0.9,"active_prefill_tokens_threshold":null}`
	want(pins, "GET", "", "", 200, `{"thresholds":[]}`)
	want(pins, "POST", "", raised, 200, set)
	want(pins, "POST", "", `{"model":"sim"}`, 200, set)
	want(pins, "GET", "", "", 200, `{"thresholds":[`+set+`]}`)
	want(other, "GET", "", "", 200, `{"thresholds":[]}`)
	want(other, "POST", "", `{"model":"sim"}`, 404, "no model does now")
	want(other, "POST", "", raised, 404, "no model does now")
	want(other, "DELETE", "?model=sim", "", 404, "no model does now")
	want(other, "POST", "", `{"model":"other"}`, 200, "null")
	want(asks, "GET", "", "", 403, "lacks the scope route.pin")
	want(asks, "POST", "", raised, 403, "lacks the scope route.pin")
	want(pins, "PUT", "", "", 405, "GET, POST, DELETE")
	want(pins, "POST", "", "{", 400, "invalid_json")
	want(pins, "POST", "", `{"model":"`+strings.Repeat("x", 65<<10)+`"}`, 413, "64 KiB")
	want(pins, "DELETE", "", "", 400, `"param":"model"`)
	want(pins, "DELETE", "?model=sim", "", 200, strings.Replace(set, "0.9", "null", 1))
	if r := s.ask("GET", "/busy_threshold", ""); r.status != 401 {
		t.Errorf("without a key: %v", r)
	}
	if s.log.count(`msg="busy thresholds set" model=sim`) != 1 || s.log.count("by="+id) != 2 {
		t.Errorf("the log does not say who changed thresholds: %s", s.log.last(5))
	}
	if n := s.metrics().sum("cgn_router_requests_total", `api="busy_threshold"`); n == 0 {
		t.Error("the requests are not counted")
	}
}
