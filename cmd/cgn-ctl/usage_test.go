package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestArgumentsAndFlagsAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"cluster cordon":       "NODE is missing|for example: cgn-ctl cluster cordon gpu1",
		"cluster uncordon a b": "NODE is taken, 2 arguments are given|cgn-ctl cluster uncordon",
		"cluster drain":        "NODE is missing|cgn-ctl cluster drain",
		"cluster set-policy": "a policy (FILE, - or JSON) is missing|cgn-ctl cluster set-policy " +
			"policy.json",
		`cluster set-policy {"foo":1}`:    "foo: unknown key; there are mode|",
		"route explain":                   "--prompt or --file is missing|route explain --prompt",
		"sim --speed 0":                   "--speed 0: must be 0.000001 to 1000000000|",
		"sim --prefill-rate -1":           "--prefill-rate -1: must be 0.000001 to 1000000000|",
		"sim --max-seqs 0":                "--max-seqs 0: must be 1 or more|",
		"sim --block-tokens -1":           "--block-tokens -1: must be 1 or more|",
		"bench replay --speed -1":         "--speed -1: must be 0.000001 to 1000000|",
		"pki bootstrap --lifetime 3x":     `--lifetime "3x": must be days like 397d|`,
		"pki bootstrap --lifetime 99999d": `1m to 36500d|`,
		"cluster nodes --etcd.user u":     "etcd.password_file|--etcd-username",
	} {
		_, err := ctl(t, nil, strings.Fields(args)...)
		text, hint, _ := strings.Cut(want, "|")
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("%s: %v, hint %q; want %q", args, err, ctltest.Hint(err), want)
		}
	}
}

func TestVariablesNearlyReadAreNamed(t *testing.T) {
	var out strings.Builder
	warnOfVariables(&out, []string{"CGN_ETC=1", "CGN_ADMN=1", "CGN_ETCD=1", "CGN_ETCD_CA=1", "CGN_ROUTER_LISTEN=1",
		"CGN_CONFIG=1", "ETC=1"})
	if got := out.String(); got != "cgn-ctl: CGN_ETC is not read; did you mean CGN_ETCD?\ncgn-ctl: CGN_ADMN is not "+
		"read; did you mean CGN_ADMIN?\n" {
		t.Errorf("got\n%s", got)
	}
}

func TestTheAPIPortIsNotTheAdminPort(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t,
		map[string]string{"/debug/fleet": `{"error":{"message":"there is no such endpoint here","code":"unknown_path"}}`})
	if _, err := ctl(t, nil, "top", "--once", "--admin", url); err == nil ||
		!strings.Contains(ctltest.Hint(err), "admin port") {
		t.Errorf("%v, hint %q", err, ctltest.Hint(err))
	}
}

// TestWhatIsMissingIsNamed checks that the error names the missing argument with an example, not in
// the parser's words.
func TestWhatIsMissingIsNamed(t *testing.T) {
	for line, parts := range map[string][2]string{
		"kv put":                            {"BLOCK is missing", "for example: cgn-ctl kv put"},
		"kv put x":                          {"FILE is missing", "for example: cgn-ctl kv put"},
		"kv put x y z":                      {"BLOCK and FILE are taken, 3 arguments are given", "for example: cgn-ctl kv put"},
		"bpf serve":                         {"--socket is missing", "for example: cgn-ctl bpf serve --socket"},
		"route explain --prompt a --file f": {"--prompt and --file are both given", "for example: cgn-ctl route explain"},
		"help bogus":                        {`cgn-ctl has no command "bogus"`, "cgn-ctl --help"},
		"nodes":                             {`cgn-ctl has no command "nodes"`, "Did you mean cgn-ctl cluster nodes?"},
		"versoin":                           {`cgn-ctl has no command "versoin"`, "Did you mean cgn-ctl version?"},
		"top x":                             {`cgn-ctl top takes no argument, "x" is given`, "cgn-ctl top --help"},
		"cluster nodez":                     {`cgn-ctl cluster has no command "nodez"`, "Did you mean cgn-ctl cluster nodes?"},
		"cluster bogus":                     {`cgn-ctl cluster has no command "bogus"`, "cgn-ctl cluster --help"},
		"foo":                               {`cgn-ctl has no command "foo"`, "see cgn-ctl --help"},
		"help cluster bogus":                {`cgn-ctl cluster has no command "bogus"`, "cgn-ctl cluster --help"},
		"bench load closed --url http://127.0.0.1:1": {"nothing was measured", "--url"},
	} {
		_, err := ctl(t, nil, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), parts[0]) || !strings.Contains(ctltest.Hint(err), parts[1]) {
			t.Errorf("%s: %v, hint %q", line, err, ctltest.Hint(err))
		}
	}
	if out, err := ctl(t, nil, "help", "cluster", "nodes"); err != nil ||
		!strings.Contains(out, "List") && !strings.Contains(out, "Lists") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestExitStatus checks the exit status: 2 for a wrong command line, 1 for a failure.
func TestExitStatus(t *testing.T) {
	for args, want := range map[string]int{
		"version": 0, "version --help": 0, "key limit ID --help": 0, "key --help": 0, "limit --help": 2,
		"key lmit --help": 2, "version -o xml": 2, "version --nothing": 2, "versoin": 2, "kv peesr": 2, "kv get": 2,
		"kv stats --sock /nowhere/kv.sock": 1, "kv rm --tenant beta --model=": 2,
		"kv ls --limit 0": 2, "kv ls --namespace foo": 2, "kv rm": 2, "up --engines 0": 2, "up --mode foo": 2,
		"route explain": 2, "up --model /nowhere.gguf": 1, "bpf serve": 2, "sim --kv-replay x": 2,
		"kv stats --address x": 2, `bench cluster --policy {"kv":2}`: 2, "bench cluster --trace /nowhere": 1,
		`bench cluster --workloads chat --policy {"kv":2}`:           2,
		`bench cluster --workloads chat --variant x={"predictd":{}}`: 2,
		"bench cluster --workloads chat --variant x={":               2,
		"bench cluster --workloads chat --variant x":                 2,
	} {
		var out, errOut bytes.Buffer
		root := newRoot(&out, &errOut, func(string) string { return "" })
		root.SetArgs(strings.Fields(args))
		if got := cli.Run(root, &errOut); got != want || want != 0 && !strings.HasPrefix(errOut.String(), "cgn-ctl: ") {
			t.Errorf("%s: %d %s", args, got, &errOut)
		}
	}
}
