package router_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
)

// check loads a configuration from flags like --check-config.
func check(args ...string) error {
	var c router.Config
	return config.Load(&c, config.Options{Program: "cgn-router", Args: args})
}

// TestAdvice checks the warnings about valid settings.
func TestAdvice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"mode":"random","cost":{"temperature":1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--backend http://e:1 --backend http://f:1,role=decode":   "",
		"--backend http://e:1,id=a --backend http://e:1":          "the backends a and e:1 have the same URL, http://e:1: ",
		"--backend http://e:1,id=a,role=prefill":                  "",
		"--backend http://e:1,id=a,role=prefill --disagg false":   "the backend a has role prefill and gets no requests",
		"--backend http://e:1 --policy-file " + file:              "router.policy_file: cost.temperature: no effect in mode random",
		"--backend http://e:1 --policy-file " + file + ".no-file": "",
		"--backend http://e:1 --mode cost --policy-file " + file:  "",
		"--backend http://e:1 --listen :1 --insecure-listen":      "router.listen: anybody who reaches :1 may use it",
		"--backend http://e:1 --listen :1 --insecure-listen --keys-file k": "router.listen: API keys and tokens cross the " +
			"network to :1 unencrypted",
		"--backend http://e:1 --listen :1 --keys-file k --tls.cert c --tls.key k":      "",
		"--backend http://e:1 --listen :1 --tls.cert c --tls.key k --tls.client_ca ca": "",
		"--backend http://e:1 --admin :1 --insecure-admin --keys-file k": "router.admin: API keys and tokens cross the " +
			"network to :1 unencrypted, and whoever",
	} {
		var c router.Config
		_ = config.Load(&c, config.Options{Program: "cgn-router", Args: strings.Fields(args)})
		if got := strings.Join(c.Advise(), "; "); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	at := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(at, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	advice := func(set func(c *router.Config), want ...string) {
		t.Helper()
		var c router.Config
		_ = config.Load(&c, config.Options{Program: "cgn-router", Args: []string{"--backend", "http://e:1"}})
		set(&c)
		got := c.Advise()
		for i, note := range got {
			if i >= len(want) || !strings.HasPrefix(note, want[i]) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	advice(func(c *router.Config) {
		c.RateLimit.Password, c.Backends = at, []router.BackendConfig{{URL: "http://f:1", APIKeyFile: at}}
	},
		"ratelimit.password_file: "+at+" has the mode 0644")
	group := router.OIDCGroupConfig{Name: "ml"}
	advice(func(c *router.Config) { c.Auth.OIDC.Groups = []router.OIDCGroupConfig{group} },
		"auth.oidc.group[0] has no tenant")
	advice(func(c *router.Config) {
		c.Auth.OIDC.Groups, c.Auth.OIDC.TenantName = []router.OIDCGroupConfig{group}, "org"
	})
	c := router.Config{Router: router.RouterConfig{Listen: "localhost:1", Admin: "localhost:2"},
		Models: []router.ModelConfig{{
			Name: "m", Policy: `{"score":{"epsilon":0.5},"mode":"cost"}`, Pools: map[string][]string{"decode": {"a"}},
		}}, Backends: []router.BackendConfig{{URL: "http://e:1", ID: "a", Role: "prefill"}}}
	if got := c.Advise(); len(got) != 1 || got[0] != "model[0].policy: score.epsilon: no effect in mode cost" {
		t.Errorf("%q", got)
	}
}

// TestALogHasAFileOfItsOwn checks that no log is another setting's file, under whatever name.
func TestALogHasAFileOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("keys"), []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("keys"), at("link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	named := strings.NewReplacer("KEYS", at("keys"), "LOG", at("log"), "LINK", at("link"), "DIR", dir)
	for args, want := range map[string]string{
		"--keys-file KEYS --audit-log LOG":             "",
		"--keys-file KEYS --audit-log KEYS":            "audit.log: KEYS is the file of auth.keys_file",
		"--keys-file KEYS --access-log LINK":           "log.access: LINK is the file of auth.keys_file",
		"--audit-log LOG --access-log DIR/x/../log":    "log.access: DIR/x/../log is the file of audit.log",
		"--audit-log /dev/null --access-log /dev/null": "",
		"--audit-log - --access-log -":                 "",
		"--usage-dir DIR --access-log LOG":             "log.access: LOG is in usage.dir",
		"--usage-dir DIR --access-log DIR/../log":      "",
		"--usage-dir DIR":                              "",
		"--usage-dir DIR --audit-log syslog":           "",
	} {
		args, want = named.Replace("--backend http://e:1 "+args), named.Replace(want)
		var c router.Config
		err := config.Load(&c, config.Options{Program: "cgn-router", Args: strings.Fields(args)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestWhatCannotWorkIsRefusedByItsField(t *testing.T) {
	for args, want := range map[string]string{
		"--backend http://e:1": "",
		"--backend http://e:1 --drain-timeout 0s --drain-delay 0s": "",
		"--etcd h:1 --etcd.ca ca.crt --upstream_tls.ca ca.crt":     "",
		"":                                   "backend: no engine",
		"--backend http://e:1 --backend e:2": "router.backends[1]: backend",
		"--backend http://e:1,rank=3":        "router.backends[0]: backend",
		"--backend http://e:1 --backend http://e:1/x":    "give one of them another id=",
		"--backend http://user:secret@e:1":               "api_key_file",
		"--backend http://e:1 --log-level loud":          "debug, info, warn, error",
		"--backend http://e:1 --log-format xml":          "text, json",
		"--backend http://e:1 --timeouts.dial 0s":        "timeouts.dial: 0s is too short",
		"--backend http://e:1 --timeouts.stall_floor 0s": "timeouts.stall_floor",
		"--backend http://e:1 --limits.slow_reader 0s":   "limits.slow_reader",
		"--backend http://e:1 --prefix.ttl 0s":           "prefix.ttl",
		"--backend http://e:1 --limits.max_body 0":       "limits.max_body",
		"--backend http://e:1 --limits.max_body 99999GiB": "limits.max_body: 99999GiB is " +
			"more than limits.max_body_total, 1GiB",
		"--backend http://e:1 --tls.cert c": "tls.cert: goes together with " +
			"tls.key",
		"--backend http://e:1 --tls.client_ca c":                          "tls.client_ca: needs tls.cert",
		"--backend http://e:1 --upstream_tls.key k --upstream_tls.ca c":   "upstream_tls.cert: goes together",
		"--backend http://e:1 --upstream_tls.key k --upstream_tls.cert c": "upstream_tls.ca: empty",
		"--etcd h:1 --etcd.key k": "etcd.cert and etcd.key go " +
			"together",
		"--etcd h:1 --etcd.username u": "etcd.username and " +
			"etcd.password_file go together",
		"--backend http://e:1 --listen 8080": "router.listen: \"8080\" is not " +
			"an address",
		"--backend http://e:1 --listen unix:x":          "use host:port or unix:///path",
		"--backend http://e:1 --listen 127.0.0.1:70000": "\"70000\" is not a port",
		"--backend http://e:1 --listen 127.0.0.1:80 --admin 127.0.0.1:80": "router.admin: \"127.0.0.1:80\" " +
			"cannot be listened on next to router.listen",
		"--backend http://e:1 --listen 127.0.0.1:0 --admin 127.0.0.1:0": "",
		"--backend http://127.0.0.1:8080": "router.backends[0]: " +
			"127.0.0.1:8080 is where the router itself listens",
		"--policy p.json": "--policy: unknown flag; did you mean --policy-file?",
		"--backend http://e:1 --limits.max_body 64": "limits.max_body: 64 is too small; use 1KiB or more, " +
			"and write the unit, as in 64MiB",
		"--max_queue 1": "did you mean --router.admission.max_queue?",
		"--nope": "configuration: --nope: unknown " +
			"flag (see --help)",
		"--etcd ftp://etcd1:2379": "etcd.endpoints[0]: " +
			"\"ftp://etcd1:2379\" is not an address of etcd",
		"--backend http://e:1 --tls-cert c": "tls.cert: goes together with " +
			"tls.key",
		"--etcd etcd1": "etcd.endpoints[0]: \"etcd1\" is " +
			"not an address of etcd",
		"--etcd https://etcd1:2379 --etcd http://etcd2:2379/ --etcd 10.0.0.1:2379": "",
		"--backend http://e:1 --listen :8080": "router.listen: \":8080\" is " +
			"reachable",
		"--backend http://e:1 --admin 10.0.0.1:1 --insecure-listen": "router.admin: \"10.0.0.1:1\" is " +
			"reachable",
		"--backend http://e:1 --admin 10.0.0.1:1 --insecure-admin": "",
		"--backend http://e:1 --listen :8080 --insecure-admin": "router.listen: \":8080\" is " +
			"reachable",
		"--backend http://e:1 --listen :8080 --insecure-listen":            "",
		"--backend http://e:1 --admin 10.0.0.1:1 --listen unix:///run/x.s": "router.admin",
	} {
		err := check(strings.Fields(args)...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is shown: %v", err)
		}
	}
}

// TestAdminBeyondLoopback checks what an admin port beyond loopback needs.
func TestAdminBeyondLoopback(t *testing.T) {
	const pair = " --admin_tls.cert c --admin_tls.key k"
	for args, refused := range map[string]bool{
		"": true, "--keys-file k": true, pair: true, "--admin_tls.client_ca a": false,
		"--keys-file k" + pair: false, pair + " --admin_tls.client_ca a": false,
	} {
		err := check(strings.Fields("--backend http://e:2 --admin :1 " + args)...)
		if got := strings.Contains(fmt.Sprint(err), `router.admin: ":1" is reachable`); got != refused {
			t.Errorf("%s: %v", args, err)
		}
	}
	if err := check("--backend", "http://e:2", "--admin_tls.client_ca", "a"); err == nil ||
		!strings.Contains(err.Error(), "admin_tls.client_ca: needs") {
		t.Errorf("a CA without a certificate: %v", err)
	}
}

// TestPatienceWithinTheHardBound checks that a patience floor beyond the hard bound is refused. The
// floor's default may be beyond it.
func TestPatienceWithinTheHardBound(t *testing.T) {
	for args, want := range map[string]string{
		"--timeouts.patience_floor 10s --timeouts.first_byte 1s": "timeouts.patience_floor: 10s is more than " +
			"timeouts.first_byte, 1s; use less, or raise that",
		"--timeouts.patience_floor 10s --timeouts.first_byte 10s": "", "--timeouts.first_byte 500ms": "",
	} {
		err := check(strings.Fields("--backend http://e:1 " + args)...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestOverloadStatusIsOneOfTwo(t *testing.T) {
	for status, want := range map[string]string{
		"503": "", "529": "", "500": "500 is none of the statuses", "0": "use 503",
	} {
		err := check("--backend", "http://e:1", "--router.overload_status", status)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", status, err, want)
		}
	}
}

// TestAVariableNamedAsItsFlag checks that a variable with a flag's name is refused, and that the
// error names the right variable.
func TestAVariableNamedAsItsFlag(t *testing.T) {
	err := config.Load(&router.Config{}, config.Options{Program: "cgn-router", Env: []string{"CGN_BACKEND=http://e:1"}})
	if err == nil || !strings.Contains(err.Error(), "CGN_BACKEND: unknown setting; did you mean CGN_ROUTER_BACKENDS?") {
		t.Errorf("%v", err)
	}
}

// TestCheckConfigExamines checks that every problem of a start is an error with its field. A start
// itself does not check twice, and a check creates nothing.
func TestCheckConfigExamines(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := pki.Bootstrap(filepath.Join(dir, "pki"), pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own, other := pki.FilesIn(filepath.Join(dir, "pki"), pki.Router), pki.FilesIn(filepath.Join(dir, "pki"), pki.Etcd)
	policy, key, garbage, empty := write("policy", `{"mode":"random"}`), write("key", "sk-1\n"), write("garbage", "{"),
		write("empty", "")
	table := write("table.toml", "[[backend]]\nurl = \"http://e:2\"\napi_key_file = \""+dir+"/no\"\n")
	if err := os.Mkdir(filepath.Join(dir, "open"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o777); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	for args, want := range map[string]string{
		"--policy-file " + policy + " --backend http://e:2,api_key_file=" + key: "",
		"--tls.cert " + own.Cert + " --tls.key " + own.Key:                      "",
		"--access-log " + dir + "/access.log --listen unix://" + dir + "/s":     "",
		"--access-log -":                      "",
		"--takeover.socket " + dir + "/new/s": "",
		"--takeover.socket " + dir + "/open/s": "takeover.socket: " + dir + "/open is no " +
			"directory or others can write to it",
		"--takeover.socket " + key + "/s": "takeover.socket: ",
		"--policy-file " + dir + "/no": "router.policy_file: " + dir + "/no does " +
			"not exist; name a JSON policy document",
		"--policy-file " + garbage: "router.policy_file: " + garbage,
		"--access-log " + dir + "/no/log": "log.access: " + dir + "/no does not " +
			"exist; name a file in a directory",
		"--access-log " + dir:              "log.access: " + dir + " is a directory",
		"--listen unix://" + dir + "/no/s": "router.listen: the socket cannot be made",
		"--admin unix://" + key: "router.admin: " + key + " is there and " +
			"is no socket",
		"--backend http://e:2,api_key_file=" + dir + "/no": "router.backends[1]: option " +
			"api_key_file: " + dir + "/no does not exist; name a file that holds",
		"--backend http://e:2,api_key_file=" + empty:                       "does not hold one key",
		"--backend https://e:2,ca=" + garbage:                              "router.backends[1]: option ca: ",
		"--config " + table:                                                "backend[0].api_key_file: ",
		"--tls.cert " + own.Cert + " --tls.key " + other.Key:               "tls.cert: ",
		"--upstream_tls.ca " + dir + "/no":                                 "upstream_tls.ca: ",
		"--etcd h:1 --etcd.ca " + garbage:                                  "configuration: etcd.ca: ",
		"--etcd h:1 --etcd.username u --etcd.password_file " + dir + "/no": "etcd.password_file: ",
		"--policy-file " + dir + "/no --mode best":                         "2 problems",
	} {
		args := append(strings.Fields("--backend http://e:1 "+args), "--check-config")
		err := config.Load(&router.Config{}, config.Options{Program: "cgn-router", Args: args, Out: io.Discard})
		if errors.Is(err, config.ErrAnswered) != (want == "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("the check left\n%s, there were\n%s", after, before)
	}
	if err := check("--backend", "http://e:1", "--policy-file", dir+"/no"); err != nil {
		t.Errorf("a start looks at files when it uses them: %v", err)
	}
}

// tree lists the contents of a directory.
func tree(t *testing.T, dir string) (list string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		list += path + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestBackendTablesAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "router.toml")
	doc := "[[backend]]\nurl = \"http://e:1\"\n[[backend]]\nurl = \"http://e:2\"\nrole = \"boss\"\n[[model]]\nname = " +
		"\"m\"\nmax_queue = -1\n"
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	err := check("--config", file)
	if err == nil || !strings.Contains(err.Error(), "backend[1]: backend") ||
		!strings.Contains(err.Error(), "model[0].max_queue") {
		t.Errorf("got %v", err)
	}
}

func TestAdmissionHasAnOlderName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "router.toml")
	doc := "[router]\nbackends = [\"http://e:1\"]\n[admission]\nmax_queue = 7\n"
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	var c router.Config
	var warned []string
	err := config.Load(&c, config.Options{
		Program: "cgn-router", Args: []string{"--config", file, "--admission.max_queue_decode=5"},
		Env:     []string{"CGN_ADMISSION_GLOBAL=9"},
		Renamed: func(given, name string) { warned = append(warned, given+" > "+name) },
	})
	want := []string{file + ":3: admission > router.admission", "CGN_ADMISSION_GLOBAL > CGN_ROUTER_ADMISSION_GLOBAL",
		"--admission.max_queue_decode > --router.admission.max_queue_decode"}
	if err != nil || c.Router.Admission != (router.AdmissionConfig{MaxQueue: 7, MaxQueueDecode: 5, Global: 9}) ||
		!slices.Equal(warned, want) {
		t.Errorf("%v, %+v, warned %q", err, c.Router.Admission, warned)
	}
}

// TestSettingsOfOneDaemonDoNotDisturbTheOther checks that router and agent can start from one
// environment.
func TestSettingsOfOneDaemonDoNotDisturbTheOther(t *testing.T) {
	env := []string{"CGN_UPSTREAM_TLS_CA=ca", "CGN_ROUTER_BACKENDS=http://e:1", "CGN_AGENT_NODE_ID=n",
		"CGN_ENGINE_URL=http://e:1"}
	var r router.Config
	if err := config.Load(&r, config.Options{Env: env}); err != nil || r.Upstream.CA != "ca" {
		t.Errorf("router: %v", err)
	}
	var a agent.Config
	if err := config.Load(&a, config.Options{Env: env}); err != nil {
		t.Errorf("agent: %v", err)
	}
}

func TestASocketLeftBehindDoesNotBlockTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "router.sock")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	c := settings(t, &logged{t: t})
	c.Router.Backends, c.Router.Listen = []string{"http://127.0.0.1:1"}, "unix://"+path
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	second, err := router.New(c)
	if err == nil {
		second.Close()
		t.Error("two routers on one socket")
	}
}

// TestPrefixSettings checks the bounds of the prefix index's settings, and the older name of ttl.
func TestPrefixSettings(t *testing.T) {
	for args, want := range map[string]string{
		"--prefix.lifetime 7s":                                     "",
		"--prefix.lifetime 0s":                                     "prefix.ttl: 0s is too short",
		"--prefix.max_blocks 1023":                                 "prefix.max_blocks: 1023 is too small",
		"--router.cascade.confidence_threshold 0.5":                "router.cascade.confidence_threshold: 0.5 is not in -100..0",
		"--router.cascade.quantile 2":                              "router.cascade.quantile: 2 is not in 0..1",
		"--router.cascade.tokens 0":                                "router.cascade.tokens: 0 is not in 1..1024",
		"--router.cascade.latency 0s":                              "router.cascade.latency: 0s is too short",
		"--router.cascade.max_held 1KiB":                           "router.cascade.max_held: 1KiB is not in 16KiB..16MiB",
		"--router.cascade.judge early":                             "must be one of whole, stream",
		"--prefix.prune_target_ratio 0.01":                         "",
		"--prefix.prune_target_ratio 0.99":                         "",
		"--prefix.prune_target_ratio 0":                            "prefix.prune_target_ratio: 0 is not in 0.01..0.99; leave it out",
		"--prefix.prune_target_ratio 1":                            "prefix.prune_target_ratio: 1 is not",
		"--prefix.prune_target_ratio NaN":                          "prefix.prune_target_ratio",
		"--prefix.ttl 1m --prefix.max_blocks 1024":                 "",
		"--prefix.kv_events=false --prefix.ttl 500ms":              "",
		"--backend http://127.0.0.1:1,kv-events=tcp://127.0.0.1:2": "backend.kv_events: http://127.0.0.1:1: KV events",
		"--backend http://127.0.0.1:1,kv-events=tcp://127.0.0.1:2 --prefix.kv_events=false": "",
	} {
		err := check(append([]string{"--backend", "http://e:1"}, strings.Fields(args)...)...)
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
