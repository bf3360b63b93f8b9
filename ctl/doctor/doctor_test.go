package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/pki"
)

// host is a directory with configurations, certificates and secrets.
type host struct {
	*testing.T
	dir string
}

func newHost(t *testing.T, o pki.Options) *host {
	t.Helper()
	h := &host{t, t.TempDir()}
	if err := pki.Bootstrap(h.at("pki"), o); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.at("pki/ca.key"), h.at("elsewhere.key")); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) at(name string) string { return filepath.Join(h.dir, name) }

// write writes a file; DIR in text stands for the host's directory.
func (h *host) write(name, text string, mode os.FileMode) string {
	h.Helper()
	if err := os.WriteFile(h.at(name), []byte(strings.ReplaceAll(text, "DIR", h.dir)), 0o600); err != nil {
		h.Fatal(err)
	}
	if err := os.Chmod(h.at(name), mode); err != nil {
		h.Fatal(err)
	}
	return h.at(name)
}

// examine runs doctor and returns its findings as "severity kind field", without the clock, which
// is that of the machine.
func (h *host) examine(args ...string) (found []string, r result, err error) {
	h.Helper()
	out, err := ctltest.Run(h.T, Command, nil, append([]string{"doctor", "-o", "json"}, args...)...)
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
		h.Fatalf("%v, %v: %s", jsonErr, err, out)
	}
	for _, f := range r.Findings {
		if f.Problem == "" || f.Fix == "" {
			h.Errorf("%+v lacks its problem or fix", f)
		}
		if f.Kind != kindClock || f.File != "" {
			found = append(found, strings.TrimSpace(fmt.Sprint(f.Severity, " ", f.Kind, " ", f.Field)))
		}
	}
	return found, r, err
}

func (h *host) want(found []string, err error, want ...string) {
	h.Helper()
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		h.Errorf("found\n  %s\nwant\n  %s", strings.Join(found, "\n  "), strings.Join(want, "\n  "))
	}
	severe := slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, "error") })
	if severe != (err != nil) {
		h.Errorf("the command's error is %v", err)
	}
}

const etcdTo = `
[etcd]
endpoints = ["https://etcd1.example:2379"]
ca = "DIR/pki/ca.crt"
cert = "DIR/pki/%[1]s.crt"
key = "DIR/pki/%[1]s.key"
`

const tlsOf = `
[tls]
ca = "DIR/pki/ca.crt"
cert = "DIR/pki/%[1]s.crt"
key = "DIR/pki/%[1]s.key"
`

// TestNothingFound: what pki bootstrap has made, in the settings that it names, is clean.
func TestNothingFound(t *testing.T) {
	h := newHost(t, pki.Options{Hosts: []string{"gpu1.example", "10.0.0.7"}})
	keys := h.write("keys.json", `{"keys":[]}`, 0o640)
	r := h.write("router.toml", fmt.Sprintf(`
[router]
listen = "0.0.0.0:8080"
backends = ["https://gpu1.example:8000", "unix:///run/engine.sock"]
[auth]
keys_file = %q
[tls]
cert = "DIR/pki/router.crt"
key = "DIR/pki/router.key"
[upstream_tls]
ca = "DIR/pki/ca.crt"
cert = "DIR/pki/router.crt"
key = "DIR/pki/router.key"
`, keys)+fmt.Sprintf(etcdTo, "router"), 0o644)
	a := h.write("agent.toml", "[agent]\nlisten = \"0.0.0.0:9081\"\n[engine]\nurl = \"http://127.0.0.1:8000\"\n"+
		fmt.Sprintf(tlsOf, "agent")+fmt.Sprintf(etcdTo, "agent"), 0o644)
	k := h.write("kvcached.toml", "[quic]\nlisten = \"0.0.0.0:7072\"\n[grpc]\nlisten = \"0.0.0.0:7071\"\n"+
		fmt.Sprintf(tlsOf, "kvcached")+fmt.Sprintf(etcdTo, "kvcached"), 0o644)
	found, got, err := h.examine("--router", r, "--agent", a, "--kvcached", k)
	h.want(found, err)
	if len(got.Checked) != 3 || got.Checked[0].Listeners != 2 || got.Checked[0].Connections != 3 ||
		got.Checked[0].Secrets != 4 || len(got.Checked[0].Certificates) != 2 {
		t.Errorf("%+v", got.Checked)
	}
	out, err := ctltest.Run(t, Command, nil, "doctor", "--agent", a)
	if err != nil {
		t.Error(err)
	}
	ctltest.Want(t, out, "cgn-agent ("+a+"): 2 listeners, 2 connections", "etcd.cert valid until")
}

// TestLogs checks that logs which more users can read than the daemons would let are found.
func TestLogs(t *testing.T) {
	h := newHost(t, pki.Options{})
	file := h.write("router.toml", "[router]\nbackends = [\"http://127.0.0.1:8000\"]\n[audit]\nlog = \"DIR/audit\"\n"+
		"[log]\naccess = \"DIR/access\"\n", 0o600)
	found, _, err := h.examine("--router", file)
	h.want(found, err) // not made yet
	h.write("audit", "", 0o640)
	h.write("access", "", 0o644)
	found, r, err := h.examine("--router", file)
	h.want(found, err, "warning readable audit.log", "warning readable log.access")
	if len(r.Findings) < 2 || !strings.HasPrefix(r.Findings[0].Fix, "chmod 0600 ") {
		t.Errorf("%+v", r.Findings)
	}
	for daemon, text := range map[string]string{
		"agent":    "[engine]\nurl = \"http://127.0.0.1:8000\"\n",
		"kvcached": "[kvcached]\ndata = \"DIR/data\"\nram = \"1MiB\"\n",
	} {
		own := h.write(daemon+".toml", text+"[audit]\nlog = \"DIR/audit\"\n", 0o600)
		found, _, err = h.examine("--"+daemon, own)
		h.want(found, err, "warning readable audit.log")
	}
	h.write("audit", "", 0o600)
	h.write("access", "", 0o640)
	found, _, err = h.examine("--router", file)
	h.want(found, err)
}

func TestRouter(t *testing.T) {
	h := newHost(t, pki.Options{})
	h.write("key", "sk-1", 0o644)
	h.write("other", `{"keys":[]}`, 0o600)
	file := h.write("router.toml", `
[router]
listen = "0.0.0.0:8080"
insecure_listen = true
admin = "0.0.0.0:9091"
insecure_admin = true
backends = ["http://gpu1.example:8000,api_key_file=DIR/key", "http://127.0.0.1:8000"]
[[backend]]
url = "http://10.0.0.2:8000"
kv_events = "tcp://10.0.0.2:5557"
[traces]
endpoint = "http://collector.example"
insecure = true
[etcd]
endpoints = ["http://etcd1.example:2379", "etcd2.example:2379", "127.0.0.1:2379"]
`, 0o666)
	found, _, err := h.examine("--router", file)
	h.want(found, err,
		"error readable",
		"error open router.listen", "error open router.admin",
		"error plaintext router.backends[0]", "error readable router.backends[0]: option api_key_file",
		"warning plaintext backend[0]", "warning plaintext backend[0].kv_events",
		"warning plaintext traces.endpoint",
		"error plaintext etcd.endpoints[0]", "error plaintext etcd.endpoints[1]", "error open etcd.cert",
		"error plaintext upstream_tls.ca")

	found, r, err := h.examine("--router", h.write("router.toml", `
[router]
listen = "0.0.0.0:8080"
insecure_listen = true
admin = "0.0.0.0:9091"
backends = ["http://127.0.0.1:8000"]
[auth]
keys_file = "DIR/other"
[admin_tls]
client_ca = "DIR/pki/ca.crt"
cert = "DIR/pki/router.crt"
key = "DIR/pki/router.key"
[ratelimit]
redis = ["10.0.0.5:6379"]
password_file = "DIR/key"
[upstream_tls]
ca = "DIR/pki/ca.crt"
cert = "DIR/pki/agent.crt"
key = "DIR/pki/agent.key"
`, 0o644))
	h.want(found, err, "error plaintext router.listen", "error development router.admin",
		"error plaintext ratelimit.redis[0]", "error readable ratelimit.password_file",
		"error certificate upstream_tls.cert")
	for _, f := range r.Findings {
		if f.Field == "ratelimit.redis[0]" && !strings.HasPrefix(f.Problem, "10.0.0.5:6379: a key, with ") {
			t.Error(f.Problem)
		}
	}
}

// TestKeys checks what doctor finds of a damaged file of keys, of keys that go to engines, and of
// directories in which every user can replace files. A missing setting hides none of it.
func TestKeys(t *testing.T) {
	h := newHost(t, pki.Options{})
	for _, name := range []string{"open", "usage"} {
		if err := os.Mkdir(h.at(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(h.at(name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	h.write("open/keys.json", `{"keys":[]}`, 0o600)
	h.write("damaged.json", `{"keys":[`, 0o600)
	const more = "[auth]\nkeys_file = \"DIR/%s\"\n[usage]\ndir = \"DIR/usage\"\n"
	backend := "[router]\nforward_auth = true\nbackends = [\"http://127.0.0.1:8000\"]\n"
	found, _, err := h.examine("--router", h.write("router.toml", backend+fmt.Sprintf(more, "open/keys.json"), 0o600))
	h.want(found, err, "error readable auth.keys_file", "error readable usage.dir", "warning open router.forward_auth")
	found, _, err = h.examine("--router", h.write("router.toml", backend+fmt.Sprintf(more, "damaged.json"), 0o600))
	h.want(found, err, "error config auth.keys_file", "error readable usage.dir", "warning open router.forward_auth")
	found, r, err := h.examine("--router", h.write("router.toml", fmt.Sprintf(more, "open/keys.json"), 0o600))
	if !slices.Contains(found, "error config") || !slices.Contains(found, "error readable usage.dir") || err == nil ||
		r.Checked[0].Listeners != 2 {
		t.Errorf("without a backend: %q, %+v", found, r.Checked)
	}
}

func TestAgentAndCache(t *testing.T) {
	h := newHost(t, pki.Options{})
	if err := os.Chmod(h.at("pki/agent.key"), 0o640); err != nil { // a group may read it
		t.Fatal(err)
	}
	if err := os.Chmod(h.at("pki/kvcached.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.write("password", "hush", 0o620)
	a := h.write("agent.toml", `
[agent]
listen = "127.0.0.1:9081"
push = "0.0.0.0:9082"
[engine]
url = "http://gpu2.example:8000"
`+fmt.Sprintf(tlsOf, "agent"), 0o644)
	k := h.write("kvcached.toml", `
[kvcached]
insecure_listen = true
[resp]
listen = "0.0.0.0:6380"
[[resp.users]]
name = "default"
password_file = "DIR/password"
[quic]
listen = "127.0.0.1:7072"
`+fmt.Sprintf(tlsOf, "kvcached"), 0o644)
	found, _, err := h.examine("--agent", a, "--kvcached", k)
	h.want(found, err,
		"error development agent.push", "warning plaintext engine.url",
		"error plaintext resp.listen", "error readable resp.users[0].password_file", "error readable tls.key")
}

func TestCertificates(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		o    pki.Options
		want []string
	}{
		"soon":  {pki.Options{Lifetime: 29 * day}, []string{"warning certificate tls.cert"}},
		"ended": {pki.Options{Lifetime: day, Now: time.Now().Add(-2 * day)}, []string{"error certificate tls.cert"}},
		"both ended": {pki.Options{Lifetime: day, CALifetime: day, Now: time.Now().Add(-2 * day)},
			[]string{"error certificate tls.ca", "error certificate tls.cert"}},
		"CA soon": {pki.Options{CALifetime: 20 * day}, []string{"warning certificate tls.ca", "warning certificate tls.cert"}},
		"not yet": {pki.Options{Now: time.Now().Add(day)}, []string{"error clock tls.ca", "error clock tls.cert"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.o)
			found, _, err := h.examine("--agent", h.write("agent.toml", "[engine]\nurl = \"http://127.0.0.1:8000\"\n"+
				fmt.Sprintf(tlsOf, "agent"), 0o644))
			h.want(found, err, c.want...)
		})
	}
	t.Run("key of another", func(t *testing.T) {
		h := newHost(t, pki.Options{})
		h.write("ca.key", "the CA's", 0o644)
		if err := os.Rename(h.at("ca.key"), h.at("pki/ca.key")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(h.at("pki/router.key"), h.at("pki/agent.key")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(h.at("pki/kvcached.key")); err != nil {
			t.Fatal(err)
		}
		a := h.write("agent.toml", "[engine]\nurl = \"http://127.0.0.1:8000\"\n"+fmt.Sprintf(tlsOf, "agent"), 0o644)
		k := h.write("kvcached.toml", fmt.Sprintf(tlsOf, "kvcached"), 0o644)
		found, r, err := h.examine("--agent", a, "--kvcached", k)
		h.want(found, err, "error readable tls.ca", "error certificate tls.cert", "error readable tls.ca",
			"error unseen tls.key", "warning readable tls.ca", "warning readable tls.ca")
		if fix := r.Findings[0].Fix; fix != "chmod 0600 "+h.at("pki/ca.key") {
			t.Error(fix)
		}
	})
}

// TestRefusedByTheDaemon: doctor says what the daemon says of a configuration.
func TestRefusedByTheDaemon(t *testing.T) {
	h := newHost(t, pki.Options{})
	found, r, err := h.examine("--router", h.write("router.toml", `
[router]
listen = "0.0.0.0:8080"
backends = ["http://127.0.0.1:8000"]
nonsense = 1
`, 0o644), "--agent", h.at("missing.toml"))
	h.want(found, err, "error config", "error config", "error config")
	var all strings.Builder
	for _, f := range r.Findings {
		all.WriteString(f.Problem + "\n")
	}
	ctltest.Want(t, all.String(), "reachable from other hosts without authentication", "nonsense", "missing.toml")
	if _, err := ctltest.Run(t, Command, nil, "doctor"); err == nil || !strings.Contains(ctltest.Hint(err), "--agent") {
		if _, there := os.Stat(usual); there != nil {
			t.Errorf("without files: %v", err)
		}
	}
}

// TestUnitNotRunning: the files of a unit's credentials are there only while it runs.
func TestUnitNotRunning(t *testing.T) {
	h := newHost(t, pki.Options{})
	const at = "/run/credentials/cgn-agent.service/"
	file := h.write("agent.toml", "[engine]\nurl = \"http://127.0.0.1:8000\"\n[etcd]\n"+
		"endpoints = [\"https://etcd1.example:2379\"]\nca = \""+at+"ca.crt\"\ncert = \""+at+"agent.crt\"\nkey = \""+at+
		"agent.key\"\n", 0o600)
	found, r, err := h.examine("--agent", file)
	h.want(found, err, "warning unseen etcd.key", "warning unseen etcd.cert", "warning unseen etcd.ca")
	if f := r.Findings[0]; f.Kind == kindUnseen && !strings.Contains(f.Fix, "while the unit runs") {
		t.Errorf("%+v", f)
	}
}

// TestFileOfAnotherDaemon checks that one finding tells of a file that another daemon takes.
func TestFileOfAnotherDaemon(t *testing.T) {
	h := newHost(t, pki.Options{})
	name := h.write("router.toml", "[router]\nbackends = [\"http://127.0.0.1:8000\"]\n[traces]\n", 0o644)
	found, r, err := h.examine("--agent", name)
	h.want(found, err, "error config")
	if f := r.Findings[0]; f.Problem != "this is a file of cgn-router, not of cgn-agent" {
		t.Errorf("%+v", f)
	}
	if _, err := ctltest.Run(t, Command, nil, "doctor", "--router", ""); err == nil {
		t.Error("an empty name is taken")
	}
}
