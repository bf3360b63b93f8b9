package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/cluster"
)

func TestJudge(t *testing.T) {
	dir := t.TempDir()
	args := []string{"bench", "cluster", "--workloads", "questions", "--requests", "200", "--nodes", "2",
		"--seeds", "2", "--loads", "0.5", "--modes", "kv,round-robin", "--variant", `blind={"mode":"score","kv":0}`}
	text, err := ctl(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, text, "| questions | 0.5 | cost | ", "| round_robin | ", "| blind | ",
		"blind: best or within 3 % of the best in ", "seeds 1 to 2")
	if shared, err := ctl(t, nil, append(args, "--routers", "2")...); err != nil || shared == text {
		t.Errorf("with two routers: %v\n%s", err, shared)
	}
	text, err = ctl(t, nil, append(args, "-o", "json", "--curves", filepath.Join(dir, "svg"), "--slots", "8")...)
	var j cluster.Judgement
	if err != nil || json.Unmarshal([]byte(text), &j) != nil || len(j.Rows) != 3 || len(j.Points) != 3*7 {
		t.Fatalf("%v\n%s", err, text)
	}
	if files, _ := os.ReadDir(filepath.Join(dir, "svg")); len(files) != 3 {
		t.Errorf("%d curves", len(files))
	}
}

// TestJudgeWindows judges on parts of a trace.
func TestJudgeWindows(t *testing.T) {
	text, err := ctl(t, nil, "bench", "trace", "--requests", "900")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "my.jsonl")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"bench", "cluster", "--trace", name, "--seeds", "2", "--modes", "score,random", "--window"}
	text, err = ctl(t, nil, append(args, "0/3,2/3")...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, text, "| my.jsonl 0/3 | 0.6 | score | ", "| my.jsonl 2/3 | 0.9 | random | ")
	for window, want := range map[string]string{
		"3/3":   "--window window 3 of 3: must be one of 0 to 2",
		"third": `--window "third": must be a part and the number of parts, such as 0/3`,
		"0/900": "has too few requests",
	} {
		if _, err := ctl(t, nil, append(args, window)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", window, err)
		}
	}
}

func TestJudgeRefusals(t *testing.T) {
	for flags, want := range map[string]string{
		"--workloads chats":                         `--workloads "chats": must be some of all, chat, agents`,
		"--workloads chat --speed 2":                "--speed does not go with --workloads or --window",
		"--workloads chat --seeds 1":                "--seeds 1: must be 2 to 1000",
		"--workloads chat --loads 0":                "--loads 0: must be",
		"--workloads chat --loads 1.5,abc":          `--loads "1.5,abc": must be numbers with commas between them`,
		"--workloads chat --trace x":                "--trace with --workloads needs --window",
		"--workloads chat --variant x":              `--variant "x": must be NAME=DOCUMENT`,
		"--workloads chat --variant score={}":       "with a name of its own",
		"--workloads chat --variant x={\"mode\":1}": "--variant x: policy: ",
		"--window 0/3":                              "--window needs --trace",
		"--seeds 5":                                 "--seeds needs --workloads or --window",
		"--curves dir":                              "--curves needs --workloads or --window",
		"--heartbeat -1s":                           "--heartbeat -1s: must be",
	} {
		if _, err := ctl(t, nil, append([]string{"bench", "cluster"}, strings.Fields(flags)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
