package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/ab"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestBenchABRefuses(t *testing.T) {
	const on = "--backend http://127.0.0.1:1 "
	for args, want := range map[string]string{
		"":                          "--backend is missing",
		on + "--rounds 0":           "--rounds 0: must be 1 to 1000",
		on + "--speed 0":            "--speed 0: must be",
		on + "--reset magic":        `--reset "magic": must be some of text, cache_salt, vllm, sglang, none`,
		on + "--modes score":        "--modes score: must be two modes",
		on + "--modes score,best":   "--modes: ",
		on + "--modes score,direct": "direct needs a node in each request",
		on + "--trace nowhere":      "--trace: open nowhere",
		on + "--trace bench.go":     "--trace bench.go: trace line 1",
		on + "--longest 1":          "--longest 1 leaves no request: the shortest prompt of the ",
		"--backend 127.0.0.1:8001":  "want http://host:port",
		"--config nowhere.toml":     "nowhere.toml",
		"--router a=http://h:1":     "--router is given 1 times; it must be two",
		"--router a=http://h:1 --router a=http://h:2":          "--router: both are named a; ",
		"--router a=http://h:1 --router http":                  `--router "http": must be NAME=http://HOST:PORT`,
		"--router a=http://h:1 " + on:                          "--backend and --router are both given",
		"--router a=http://h:1 --modes x":                      "--modes and --router are both given",
		"--router a=http://h --router b=tcp:1":                 `--router "b=tcp:1": must be`,
		"--router a=http://h --router b=http://h --reset vllm": "use text or cache_salt",
	} {
		_, err := ctl(t, nil, append([]string{"bench", "ab"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}

// TestBenchAB compares two modes on simulated engines, by flags and by a configuration file.
func TestBenchAB(t *testing.T) {
	var backends []string
	for range 2 {
		e, err := engine.New(engine.Config{Speed: 500, CacheBlocks: 1 << 16})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		backends = append(backends, e.URL())
	}
	args := []string{"bench", "ab", "--rate", "20", "--speed", "40", "--requests", "20", "--rounds", "2",
		"--warmup", "2", "--max-output-tokens", "4"}
	out, err := ctl(t, nil, append(args, "--backend", backends[0], "--backend", backends[1],
		"--modes", "kv,round-robin")...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "model sim, 2 rounds of 20 requests", "COST", "ROUND_ROBIN/COST", "TTFT p50 ms", "ITL p99 ms",
		"hit ratio", "The engines count 1.", "failed requests", " to ", "50 % confidence", "6 rounds or more")
	file := filepath.Join(t.TempDir(), "router.toml")
	doc := fmt.Sprintf("[router]\nbackends = [%q, %q]\n[log]\naccess = \"/nowhere/x\"\n", backends[0], backends[1])
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = ctl(t, nil, append(args, "--config", file, "--modes", "score,score", "--rounds", "1", "-o", "json")...)
	var r ab.Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.Sides != [2]string{"score a", "score b"} ||
		len(r.Runs) != 1 || r.Runs[0][1].Requests != 20 || len(r.Runs[0][1].Nodes) != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBenchABOfRunningRouters plays a file through two endpoints, without its long prompts.
func TestBenchABOfRunningRouters(t *testing.T) {
	e, err := engine.New(engine.Config{Speed: 500, RecordRequests: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	var lines strings.Builder
	for i, tokens := range []int{100, 600, 100, 100} {
		fmt.Fprintf(&lines, `{"timestamp":%d,"input_length":%d,"output_length":3,"hash_ids":%s}`+"\n", i, tokens,
			[]string{"[1]", "[1,2]"}[tokens/512])
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, map[string]string{"OPENAI_API_KEY": "k1"}, "bench", "ab", "--router", "a="+e.URL()+"/v1/",
		"--router", "b="+e.URL(), "--trace", file, "--longest", "512", "--requests", "2", "--rounds", "1",
		"--warmup", "0", "--reset", "cache_salt", "--ignore-eos=false", "-o", "json")
	var r ab.Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.Sides != [2]string{"a", "b"} || r.Requests != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	salts := map[string]int{}
	for _, q := range e.Requests() {
		if q.Path == "/v1/chat/completions" {
			_, salt, _ := strings.Cut(string(q.Body), `"cache_salt":`)
			salts[salt]++
			if q.Header.Get("Authorization") != "Bearer k1" || strings.Contains(string(q.Body), "ignore_eos") {
				t.Errorf("%v %s", q.Header, q.Body)
			}
		}
	}
	if len(salts) != 2 || salts[""] != 0 {
		t.Errorf("salts %v", salts)
	}
}

// TestABNotes checks what is said of figures that deserve doubt.
func TestABNotes(t *testing.T) {
	for want, r := range map[string]*ab.Report{
		"Medians of 6 rounds, with the interval that has the true median with 97 % confidence.": {Rounds: 6, Requests: 9},
		"One round has no interval. 6 rounds or more give 95 %.":                                {Rounds: 1},
		"Of 54 requests of each side some had no answer, and have no times.": {Rounds: 6, Requests: 9,
			Refused: [2]int{0, 1}},
		"sent a request 1.50 s late: ": {Rounds: 6, Late: 1.5},
	} {
		if got := abNotes(r); !strings.Contains(got, want) || r.Late == 0 && strings.Contains(got, "late") {
			t.Errorf("%q, want %q", got, want)
		}
	}
	one := compare.IntervalOf([]float64{123.4})
	if got := bounded(&one, significant); got != "123" {
		t.Error(got)
	}
}
