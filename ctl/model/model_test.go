package model

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/etcdserver"
)

// nobody is an address where no router or etcd answers.
const nobody = "127.0.0.1:1"

func startEtcd(t *testing.T) (env map[string]string, client *cluster.Client) {
	t.Helper()
	s, err := etcdserver.Start(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client, err = cluster.Dial(cluster.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return map[string]string{"CGN_ETCD": s.Endpoint(), "CGN_ADMIN": nobody}, client
}

// TestSetListRm: set changes only what it names, list shows it, and rm removes all of it.
func TestSetListRm(t *testing.T) {
	env, client := startEtcd(t)
	must := func(args ...string) string {
		t.Helper()
		out, err := ctl(t, env, args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	stored := func(want string) {
		t.Helper()
		all, err := client.Models(t.Context())
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		if got, _ := json.Marshal(all[0].Model); string(got) != want {
			t.Errorf("stored\n%s, want\n%s", got, want)
		}
	}
	ctltest.Want(t, must("list"), "no model has settings")
	ctltest.Want(t, must("set", "m", "--alias", "a", "--alias", "b,c", "--tokenizer", "/d", "--chat-template", "/t",
		"--pool", "decode=n1, n2", "--pool", "prefill=n3", "--policy", `{"mode":"random"}`, "--adapter-load", "1m"),
		"stored for model m", "a,b,c", "prefill=n3 decode=n1,n2", `{"mode":"random"}`)
	stored(`{"aliases":["a","b,c"],"tokenizer":"/d","chat_template":"/t","pools":{"decode":["n1","n2"],` +
		`"prefill":["n3"]},"policy":{"mode":"random"},"adapter_load_s":60}`)
	ctltest.Want(t, must("list"), "m", "a,b,c", "/d", "prefill=n3 decode=n1,n2", "random", "1m0s")
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"mode":"round_robin"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	must("set", "m", "--pool", "prefill=", "--policy", file, "--unset", "alias,adapter-load", "--tokenizer", "none")
	stored(`{"tokenizer":"none","pools":{"decode":["n1","n2"]},"policy":{"mode":"round_robin"}}`)
	must("set", "m", "--policy", "{}")
	if line := must("list"); !strings.Contains(line, " predicted ") {
		t.Errorf("the mode of {} is the default:\n%s", line)
	}
	must("set", "m", "--unset", "tokenizer,pool,policy", "--base", "big")
	stored(`{"base":"big"}`)
	ctltest.Want(t, must("list", "-o", "json"), `"stored": {`, `"base": "big"`)
	ctltest.Want(t, must("set", "m", "--unset", "base", "--cascade", "small,big", "--cascade-threshold", "-0.4",
		"--cascade-direct", "small"), "cascade", "small,big", "-0.4")
	stored(`{"cascade":["small","big"],"cascade_thresholds":[-0.4],"cascade_direct":"small"}`)
	ctltest.Want(t, must("list"), "small>big", "no agent has registered a node with big of its cascade")
	must("set", "m", "--unset", "cascade", "--base", "big")
	if _, err := ctl(t, env, "rm", "n"); err == nil || !strings.Contains(err.Error(), "no settings in etcd") ||
		!strings.Contains(ctltest.Hint(err), "Did you mean m?") {
		t.Errorf("%v, hint %q", err, ctltest.Hint(err))
	}
	ctltest.Want(t, must("rm", "m"), "the settings of model m are removed")
	ctltest.Want(t, must("list"), "no model has settings")
}

func TestBadSettingsAreNamed(t *testing.T) {
	env, client := startEtcd(t)
	for line, want := range map[string]string{
		"set m":                                  "no setting is given|--alias gpt-4o-mini",
		"set m --pool boss=a":                    `--pool "boss=a": must be ROLE=NODE,NODE|`,
		"set m --pool decode":                    `--pool "decode": must be ROLE=NODE,NODE|`,
		"set m --pool decode=a/b":                "pool decode: node id|",
		"set m --pool both=a --pool decode=a":    "node a is in the pools decode and both|",
		"set m --pool both=a,a":                  "node a is twice in the pool both; leave one out|",
		"set m --policy []":                      `--policy: "[]" is not a JSON object, and there is no file|{"mode":"cost"}`,
		"set m --policy null":                    `--policy: "null" is not a JSON object|{"mode":"cost"}`,
		"set m --policy //\u00a0x":               "is not a JSON object|",
		"set  --alias x":                         "NAME is empty; name the model|",
		`set m --policy {"mode":"none"}`:         "--policy is not valid, and nothing was stored|",
		`set m --policy {"models":{}}`:           "models: a document is one policy|",
		"set m --policy /nowhere":                "/nowhere|",
		"set m --policy=":                        "--policy is empty|--unset",
		"set m --alias=":                         "--alias is empty|--unset",
		"set m --tokenizer rel/dir":              "must be an absolute path|",
		"set m --chat-template /t":               "chat_template needs a tokenizer|",
		"set m --base m":                         "base is the model itself|",
		"set m --adapter-load 2h":                "--adapter-load 2h0m0s: must be 0s to 1h0m0s|",
		"set m --cascade a":                      "cascade names 1 models; name 2 to 8|",
		"set m --cascade-threshold -1":           "cascade_thresholds and cascade_direct need a cascade|",
		"set m --cascade a,b --cascade-direct c": "cascade_direct c is not in the cascade|",
		"set m --unset alais":                    `--unset "alais": must be one of adapter-load, alias|Did you mean alias?`,
		"set m --alias x --unset alias":          "--alias and --unset alias are both given|",
		"set m --alias m":                        "--alias m is the model's own name|",
		"set m --alias a --alias a":              "--alias a is given twice|",
		"set m --alias a\u00a0b":                 `--alias "a\u00a0b" has white space or control characters|`,
		"set m --alias a\x00":                    `--alias "a\x00" has white space or control characters|`,
		"set a\u2003b --alias a":                 `NAME "a\u2003b" has white space or control characters|`,
		"rm":                                     "NAME is missing|cgn-ctl model rm",
		"lsit":                                   `cgn-ctl model has no command "lsit"|cgn-ctl model list`,
	} {
		text, hint, _ := strings.Cut(want, "|")
		_, err := ctl(t, env, strings.Split(line, " ")...)
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("%s: %v, hint %q", line, err, ctltest.Hint(err))
		}
	}
	if all, err := client.Models(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("something was stored: %+v %v", all, err)
	}
}

// TestEmptyNameIsAMistakeOfTheCommandLine checks the exit status of an empty NAME.
func TestEmptyNameIsAMistakeOfTheCommandLine(t *testing.T) {
	var out bytes.Buffer
	root := ctltest.Root(Command, &out, &out, func(string) string { return "" })
	root.SetArgs([]string{"model", "set", "", "--alias", "x"})
	const want = "cgn-ctl: NAME is empty; name the model as the engines do\n"
	if got := cli.Run(root, &out); got != 2 || out.String() != want {
		t.Errorf("%d %s", got, &out)
	}
}

// TestUnusedSettingsOfAPolicyAreNamed: set stores a policy with settings that have no effect, and
// warns of them.
func TestUnusedSettingsOfAPolicyAreNamed(t *testing.T) {
	env, _ := startEtcd(t)
	register(t, dial(t, env["CGN_ETCD"]), "n1", cluster.RoleBoth, "m")
	for doc, want := range map[string]string{
		`{"mode":"random","score":{"max_share":2}}`: "cgn-ctl: score.max_share of the policy has no effect; leave it out\n",
		`{"mode":"random"}`:                         "",
		`{"mode":"cost","score":{"epsilon":0.5}}`: "cgn-ctl: model m: in its policy, score.epsilon: no effect in mode " +
			"cost\n",
	} {
		var warnings bytes.Buffer
		root := ctltest.Root(Command, io.Discard, &warnings, func(name string) string { return env[name] })
		root.SetArgs([]string{"model", "set", "m", "--policy", doc})
		root.SetContext(t.Context())
		if err := root.Execute(); err != nil || warnings.String() != want {
			t.Errorf("%s: %q, %v", doc, warnings.String(), err)
		}
	}
}

// TestListWithARouter: the router's settings count before etcd's in the list, and its problems are
// shown. Without etcd the list has the router's models.
func TestListWithARouter(t *testing.T) {
	env, client := startEtcd(t)
	if err := client.PutModel(t.Context(), "m", cluster.Model{Aliases: []string{"stored"}}); err != nil {
		t.Fatal(err)
	}
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": `{"nodes":[{"id":"n1","adapters":[
		{"name":"sql","base":"m","loaded":true}]},{"id":"n2","adapters":[{"name":"sql","base":"m","loaded":false}]},
		{"id":"n3","adapters":[{"name":"sql","base":"m"}]}],"models":[
		{"name":"m","nodes":["n1"],"prefill":["n2"],"settings":{"aliases":["ours"],"tokenizer":"/d"},"tokenizer_error":"no /d"},
		{"name":"sql","nodes":["n1"],"base":"m"}]}`})
	env["CGN_ADMIN"] = url
	out, err := ctl(t, env, "list")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "ours", "/d", "no /d", "sql")
	if row := strings.Fields(out[strings.Index(out, "\nm "):]); row[8] != "n1" {
		t.Errorf("the nodes that answer requests for m are %s; n2 is a prefill node", row[8])
	}
	if line := out[strings.Index(out, "sql"):]; len(strings.Fields(line)) != 10 || strings.Fields(line)[9] != "n1" {
		t.Errorf("loaded on: %s", line)
	}
	if strings.Contains(out, "stored") {
		t.Errorf("the router's own settings are in force there:\n%s", out)
	}
	env["CGN_ETCD"] = nobody
	if out, err = ctl(t, env, "list"); err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "ours", "sql")
	env["CGN_ADMIN"] = nobody
	if _, err := ctl(t, env, "list"); err == nil || !strings.Contains(err.Error(), "etcd does not answer") {
		t.Errorf("neither: %v", err)
	}
}
