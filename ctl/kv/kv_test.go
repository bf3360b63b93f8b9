package kv

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
)

// setInline stores a value through a daemon's RESP listener.
func setInline(t *testing.T, d *kvcached.Daemon, key, value string) {
	t.Helper()
	conn, err := net.Dial("tcp", d.At("resp"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "SET "+key+" "+value+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
}

func TestKVCommands(t *testing.T) {
	d, sock := ctltest.StartCache(t)
	env := map[string]string{cache.Variable: sock}
	setInline(t, d, "greeting", "hello")
	do := func(args ...string) string {
		t.Helper()
		out, err := ctl(t, env, append([]string{"kv"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	if got := do("get", "greeting"); got != "hello" {
		t.Errorf("%q", got)
	}
	ctltest.Want(t, do("ls"), "greeting", "key1;resp.0;", "ram")

	space := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1,
		Tenant: "acme"}
	address := block.Text(space.String(), block.Addr{Digest: block.Digest{7}, Layer: 3})
	file := filepath.Join(t.TempDir(), "block")
	payload := strings.Repeat("0123456789abcdef", 200_000)
	if err := os.WriteFile(file, []byte(payload), 0o600); err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, do("put", address, file), "stored 3200000 bytes in ram")
	do("get", address, "--file", file+".back")
	if back, err := os.ReadFile(file + ".back"); err != nil || string(back) != payload {
		t.Errorf("%d bytes came back, %v", len(back), err)
	}
	var list []listedBlock
	if err := json.Unmarshal([]byte(do("ls", "--namespace", space.String(), "-o", "json")), &list); err != nil ||
		len(list) != 1 || list[0].Layer != 3 || list[0].Parent != "" || list[0].Block != address {
		t.Errorf("%v: %+v", err, list)
	}
	ctltest.Want(t, do("ls", "--namespace", space.String()), address)
	if got := do("get", list[0].Block); got != payload {
		t.Errorf("%d bytes of what ls has named", len(got))
	}
	ctltest.Want(t, do("stats"), "ram", "33554432", "key1;resp.0;", space.String(), "2 blocks stored")
	ctltest.Want(t, do("stats", "--all"), "resp_commands", "store_hits")
	var stats statsReport
	if err := json.Unmarshal([]byte(do("stats", "-o", "json")), &stats); err != nil {
		t.Fatal(err)
	}
	for _, name := range valueNames(t) {
		if _, there := stats.Values[name]; !there {
			t.Errorf("the daemon has no value %s", name)
		}
	}
	ctltest.Want(t, do("ls", "--limit", "1"), "… and more: --limit lists")
	if got := do("ls", "--limit", "2"); strings.Contains(got, "more") {
		t.Error(got)
	}
	ctltest.Want(t, do("rm", "greeting"), "1 removed")
	ctltest.Want(t, do("rm", "greeting"), "0 removed", "namespace key1;resp.0;:", "--namespace")
	ctltest.Want(t, do("rm", "--tenant", "nobody"), "0 removed")
	ctltest.Want(t, do("rm", "--model", "m", "--tenant", "acme"), "1 removed")
	kvMistakes(t, env)
}

// kvMistakes: the commands refuse flags that do not fit together, and blocks that do not exist.
func kvMistakes(t *testing.T, env map[string]string) {
	t.Helper()
	for args, text := range map[string]string{
		"ls --limit 0": "--limit 0: must be 1 to 10000000", "rm": "nothing is named",
		"get greeting":    `no such block: key "greeting" in namespace key1;resp.0;`,
		"rm x --tenant y": "give one of them", "put key file": "is not cgn:", "get x --namespace y": "--namespace",
		"rm --all --model m": "give one of them", "get cgn:x": "block",
		"rm --tenant t --model=": "--model is empty; leave it out or name one",
		"rm --model m --tenant=": "--tenant is empty", "rm x --namespace=": "--namespace is empty",
		"rm --all --address=": "--address is empty", "ls --namespace=": "--namespace is empty",
		"get x --namespace=": "--namespace is empty",
	} {
		if _, err := ctl(t, env, append([]string{"kv"}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", args, err, text)
		}
	}
}

// TestKVNames: a block is shown on one line, by the beginning of its digest or by its key, and a
// long name is cut.
func TestKVNames(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct {
		name  string
		block listedBlock
		short bool
	}{
		{digest[:16], listedBlock{Digest: digest, Block: "cgn:x"}, true},
		{strings.Repeat("k", 60) + "…", listedBlock{Key: strings.Repeat("k", 100)}, false},
		{`\"a\"\n`, listedBlock{Key: "\"a\"\n"}, false},
	} {
		if got := c.block.name(c.short); got != c.name {
			t.Errorf("%q, want %q", got, c.name)
		}
	}
}

// TestKVStatsTellsOfASmallFilesystem: the output has the configured size, and the size that
// segments may take.
func TestKVStatsTellsOfASmallFilesystem(t *testing.T) {
	for limit, shown := range map[int64]string{0: "-", 3 << 20: "3145728"} {
		var out strings.Builder
		s := statsReport{Values: map[string]int64{"store_ssd_cap": 1 << 30, "store_ssd_segment_limit": limit}}
		a := &cli.App{Out: &out, Output: "table"}
		if err := a.Show(nil, func(t *cli.Table) { s.write(t, false) }); err != nil {
			t.Fatal(err)
		}
		line := strings.Fields(strings.Split(out.String(), "\n")[2])
		if len(line) < 3 || line[0] != "ssd" || line[1] != "1073741824" || line[2] != shown {
			t.Errorf("limit %d: %q", limit, line)
		}
	}
}

// TestKVStatsTellsOfChunks: the output has the chunks that count and the reasons against others,
// once there are any.
func TestKVStatsTellsOfChunks(t *testing.T) {
	const head = "Chunks of LMCache, vLLM's tier and HiCache: "
	for _, c := range []struct {
		values map[string]int64
		want   []string
		not    string
	}{
		{map[string]int64{"chunks_idle": 1}, nil, head},
		{map[string]int64{"chunks_parts": 6, "chunks_counted": 1, "chunks_untold": 2, "chunks_tags": 3},
			[]string{head + "1 count in routing; not told 2, incomplete 0, disputed 0; stored keys of an unknown form 0, " +
				"with tags 3, beyond the table 0\n"}, "objects"},
		{map[string]int64{"chunks_beside": 4}, []string{head + "0 count", "4 objects that an SGLang needs besides pages"}, "told chunks"},
		{map[string]int64{"chunks_refused": 5}, []string{head + "0 count", "5 told chunks were not taken"}, "notes"},
		{map[string]int64{"chunks_parts": 1, "chunks_unkept": 7}, []string{"7 notes could not be kept"}, "could not be read"},
		{map[string]int64{"chunks_parts": 1, "chunks_notes": 8}, []string{"8 notes on chunks could not be read"}, "could not be kept"},
	} {
		var out strings.Builder
		s := statsReport{Values: c.values}
		a := &cli.App{Out: &out, Output: "table"}
		if err := a.Show(nil, func(t *cli.Table) { s.write(t, false) }); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, &out)
			}
		}
		if strings.Contains(out.String(), c.not) {
			t.Errorf("%q in\n%s", c.not, &out)
		}
	}
}

// TestKVStatsTellsOfReaders: the output has what each node can read.
func TestKVStatsTellsOfReaders(t *testing.T) {
	var out strings.Builder
	s := statsReport{Readers: []reader{{"gpu1", []string{"kv1;a", "kv1;b"}}, {"gpu2", []string{"kv1;a"}}}}
	a := &cli.App{Out: &out, Output: "table"}
	if err := a.Show(nil, func(t *cli.Table) { s.write(t, false) }); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"gpu1 kv1;a", "gpu1 kv1;b", "gpu2 kv1;a"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), line) {
			t.Errorf("no %q in\n%s", line, &out)
		}
	}
}

// valueNames returns the counters that kv stats requests, from its source.
func valueNames(t *testing.T) (names []string) {
	for _, file := range []string{"stats.go", "counting.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:v|Values)\["([a-z_]+)"\]`).FindAllSubmatch(source, -1) {
			names = append(names, string(m[1]))
		}
	}
	if len(names) < 10 {
		t.Fatal(names)
	}
	return names
}

func TestKVWithoutADaemon(t *testing.T) {
	for _, sock := range []string{"", "unix:///nowhere/kv.sock"} {
		_, err := ctl(t, map[string]string{cache.Variable: sock}, "kv", "stats")
		if err == nil || !strings.Contains(ctltest.Hint(err), "--sock") || strings.Contains(err.Error(), "unix:") {
			t.Errorf("%v, %s", err, ctltest.Hint(err))
		}
	}
	_, err := ctl(t, nil, "kv", "stats", "--sock", filepath.Join(t.TempDir(), "none.sock"))
	if err == nil || !strings.Contains(err.Error(), "no cache daemon answers") ||
		!strings.Contains(ctltest.Hint(err), "--sock") {
		t.Errorf("%v, %s", err, ctltest.Hint(err))
	}
}

// TestKVOfTheLeaseSocket: the error names the socket beside it.
func TestKVOfTheLeaseSocket(t *testing.T) {
	_, sock := ctltest.StartCache(t)
	_, err := ctl(t, nil, "kv", "stats", "--sock", filepath.Join(filepath.Dir(sock), "kv-lease.sock"))
	if err == nil || !strings.Contains(err.Error(), "is the lease socket") ||
		!strings.Contains(ctltest.Hint(err), "--sock "+filepath.Join(filepath.Dir(sock), "kv.sock")) {
		t.Errorf("%v, %s", err, ctltest.Hint(err))
	}
}

// TestKVOverTCP: the command works with certificates on both sides, of the permitted role.
func TestKVOverTCP(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	d, sock := ctltest.StartCache(t, func(c *kvcached.Config) {
		own := pki.FilesIn(dir, pki.KVCached)
		c.TLS, c.GRPC.Listen = kvcached.TLSConfig{CA: own.CA, Cert: own.Cert, Key: own.Key}, "127.0.0.1:0"
	})
	at := func(role pki.Role) []string {
		f := pki.FilesIn(dir, role)
		return []string{"--address", d.At("grpc"), "--tls-ca", f.CA, "--tls-cert", f.Cert, "--tls-key", f.Key}
	}
	for _, args := range [][]string{append([]string{"stats"}, at(pki.Ctl)...), append([]string{"stats"},
		at(pki.Router)...), append([]string{"rm", "--all"}, at(pki.Ctl)...), {"stats", "--sock", "unix://" + sock}} {
		if out, err := ctl(t, nil, append([]string{"kv"}, args...)...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	for text, args := range map[string][]string{
		"may not delete": append([]string{"rm", "--all"}, at(pki.Router)...),
		"needs --tls-ca": {"stats", "--address", d.At("grpc")},
		"give HOST:PORT": append([]string{"stats"}, append(at(pki.Ctl), "--address", "unix:///x")...),
		"go with":        {"stats", "--tls-ca", "x", "--sock", sock},
	} {
		if _, err := ctl(t, nil, append([]string{"kv"}, args...)...); err == nil ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", args, err, text)
		}
	}
}

func TestNamespaceErrorsSuggestHowItIsWritten(t *testing.T) {
	for text, want := range map[string]string{
		"s3.bkt": "'key1;s3.bkt;'", "key1;s3.bkt": "'key1;s3.bkt;'", "resp.1;acme": "'key1;resp.1;acme'",
		"y": "key1;s3.BUCKET;TENANT", "kv1;m": "kv stats lists",
	} {
		_, _, err := (&blockFlags{text}).find("key")
		if err == nil || !strings.Contains(ctltest.Hint(err), want) {
			t.Errorf("%s: %v, %s", text, err, ctltest.Hint(err))
		}
		for _, command := range []string{"rm", "ls"} {
			_, err := ctl(t, nil, "kv", command, "--namespace", text)
			if err == nil || !strings.HasPrefix(err.Error(), "--namespace ") ||
				!strings.Contains(ctltest.Hint(err), want) {
				t.Errorf("%s %s: %v, %s", command, text, err, ctltest.Hint(err))
			}
		}
	}
}

func TestKVOfASocketThatIsNone(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "kv.sock")
	if err := os.WriteFile(sock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl(t, map[string]string{cache.Variable: sock}, "kv", "stats"); err == nil ||
		strings.Contains(err.Error(), "desc =") || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}
