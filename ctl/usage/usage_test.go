package usage

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestMain(m *testing.M) { ctltest.Main(m) }

// ctl runs a command line on November 29, 2026.
func ctl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	now := func() time.Time { return time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC) }
	group := func(a *cli.App) *cobra.Command { return command(a, now) }
	return ctltest.Run(t, group, nil, append([]string{"usage"}, args...)...)
}

func line(day, tenant, key, model string, n int) string {
	return fmt.Sprintf(`{"day":%q,"tenant":%q,"key":%q,"model":%q,"requests":%d,"prompt_tokens":%d,"cached_tokens":%d,`+
		`"completion_tokens":%d,"estimated_requests":1}`, day, tenant, key, model, n, 10*n, 5*n, 2*n)
}

const (
	fileOne = "2026-11-28.0000000000000001.jsonl"
	fileTwo = "2026-11-29.0000000000000002.jsonl"
)

// directoryOf makes a directory of files of October and November.
func directoryOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, lines := range map[string][]string{
		"2026-10-31.0000000000000003.jsonl": {line("2026-10-31", "acme", "k1", "m", 1000)},
		fileOne:                             {line("2026-11-28", "acme", "k1", "m", 1), line("2026-11-28", "zoo", "k3", "m", 4)},
		fileTwo: {line("2026-11-29", "acme", "k2", "large", 2), line("2026-11-29", "acme", "k1", "m", 8),
			line("2026-11-29", "default", "", "m", 16)},
		"notes.txt": {"no file of a router"},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSums(t *testing.T) {
	dir := directoryOf(t)
	for args, want := range map[string]string{
		"": "TENANT   KEY  MODEL  REQUESTS  PROMPT  CACHED  COMPLETION  ESTIMATED\n" +
			"acme     k1   m      9         90      45      18          2\n" +
			"acme     k2   large  2         20      10      4           1\n" +
			"default  -    m      16        160     80      32          1\n" +
			"zoo      k3   m      4         40      20      8           1\n" +
			"total                31        310     155     62          5\n",
		"--by day,tenant --tenant acme,zoo -o csv": "day,tenant,requests,prompt_tokens,cached_tokens,completion_tokens," +
			"estimated_requests\n2026-11-28,acme,1,10,5,2,1\n2026-11-28,zoo,4,40,20,8,1\n2026-11-29,acme,10,100,50,20,2\n",
		"--by model --key k1 --from 2026-10-01 --to 2026-11-28 -o csv": "model,requests,prompt_tokens,cached_tokens," +
			"completion_tokens,estimated_requests\nm,1001,10010,5005,2002,2\n",
		"--by key --model none": "KEY    REQUESTS  PROMPT  CACHED  COMPLETION  ESTIMATED\n" +
			"total  0         0       0       0           0\n",
		"--by tenant --tenant x -o csv": "tenant,requests,prompt_tokens,cached_tokens,completion_tokens,estimated_requests\n",
	} {
		got, err := ctl(t, append([]string{dir}, strings.Fields(args)...)...)
		if err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", args, err, got, want)
		}
	}
	for filter, rows := range map[string]int{"acme": 2, "x": 0} {
		got, err := ctl(t, dir, "--tenant", filter, "-o", "json")
		var page struct {
			From, To string
			Rows     []map[string]any
			Total    map[string]int64
		}
		if json.Unmarshal([]byte(got), &page) != nil || err != nil || page.Rows == nil || len(page.Rows) != rows ||
			page.From != "2026-11-01" || page.To != "2026-11-29" {
			t.Fatalf("%v %s", err, got)
		}
		if rows > 0 && (page.Rows[1]["model"] != "large" || page.Total["prompt_tokens"] != 110) {
			t.Errorf("%+v", page)
		}
	}
}

// TestSourcesAddUp checks that a file counts once, in its latest state, although a directory and
// two admin ports have it.
func TestSourcesAddUp(t *testing.T) {
	dir := directoryOf(t)
	port := func(n int) string { // has fileTwo in another state, and a file of its own
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/usage": fmt.Sprintf(`{"day":"2026-11-29","files":[`+
			`{"name":%q,"rows":[%s]},{"name":"2026-11-29.000000000000000%d.jsonl","rows":[%s]}]}`,
			fileTwo, line("2026-11-29", "acme", "k1", "m", n), n%10, line("2026-11-29", "own", "k", "m", 1))})
		return url
	}
	got, err := ctl(t, dir, "--admin", port(4)+","+port(105), "--from", "2026-11-29", "--by", "tenant", "-o", "csv")
	if err != nil || !strings.HasSuffix(got, "\nacme,105,1050,525,210,1\nown,2,20,10,4,2\n") {
		t.Errorf("%v\n%s", err, got)
	}
	url, last, _ := ctltest.AdminPort(t, map[string]string{"/usage": `{"day":"2026-11-29","files":[]}`})
	if _, err := ctl(t, "--admin", url, "--from", "2026-11-29"); err != nil || last.URL.RawQuery != "day=2026-11-29" {
		t.Errorf("%v, asked for %s", err, last.URL)
	}
}

// TestStrangeFiles checks that files that do not count are named, few of them, and in no output.
func TestStrangeFiles(t *testing.T) {
	dir := directoryOf(t)
	for _, name := range []string{".hidden", fileOne + ".gz", "a", "b", "c", "z\x1b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errOut strings.Builder
	root := ctltest.Root(Command, &out, &errOut, os.Getenv)
	root.SetArgs([]string{"usage", dir, "--from", "2026-11-28", "--to", "2026-11-28", "--by", "model", "-o", "csv"})
	want := fmt.Sprintf("cgn-ctl: not counted, as no router gives such names: %q and 1 more in %s\n",
		[]string{fileOne + ".gz", "a", "b", "c", "notes.txt"}, dir)
	if err := root.Execute(); err != nil || errOut.String() != want || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%v, %s, want %s\n%s", err, &errOut, want, &out)
	}
}

func TestErrors(t *testing.T) {
	dir := directoryOf(t)
	bad := filepath.Join(dir, "2026-09-01.0000000000000004.jsonl")
	if err := os.WriteFile(bad, []byte("{}\n{"), 0o600); err != nil {
		t.Fatal(err)
	}
	off, _, _ := ctltest.AdminPort(t,
		map[string]string{"/usage": `{"error":{"message":"set usage.dir","code":"usage_off"}}`})
	for args, want := range map[string]string{
		"DIR --from 2026-11-30":                 "--from 2026-11-30 is after --to 2026-11-29",
		"DIR --from yesterday":                  `--from: "yesterday" is no day; write it as 2026-11-29`,
		"DIR --to 2026-02-30":                   `--to: "2026-02-30" is no day`,
		"DIR --from 2020-01-01":                 "more than 400 days",
		"DIR --by tenant,colour":                `--by "colour": name tenant, key, model and day`,
		"DIR --by day,day":                      `--by "day": `,
		"DIR DIR":                               "given twice",
		"DIR/none":                              "no such file or directory",
		"DIR -o yaml":                           "must be table, json or csv",
		"DIR --from 2026-09-01 --to 2026-09-02": "2026-09-01.0000000000000004.jsonl: line 1: ",
		"--from 2026-11-29 --admin " + off:      "set usage.dir",
		"DIR --admin= --from 2026-11-29":        "--admin is empty",
		"--admin 127.0.0.1:1 --from 2026-11-29": "no router answers",
	} {
		got, err := ctl(t, strings.Fields(strings.ReplaceAll(args, "DIR", dir))...)
		if err == nil || !strings.Contains(err.Error(), want) || got != "" {
			t.Errorf("%s: %v, want %s\n%s", args, err, want, got)
		}
	}
}
