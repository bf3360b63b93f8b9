package perf_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMissingToolsAreNamed: make test names each test that it cannot run because a tool is missing.
func TestMissingToolsAreNamed(t *testing.T) {
	tools := func(path string, args ...string) (string, error) {
		c := exec.Command("/bin/sh", append([]string{"tools.sh"}, args...)...)
		c.Env = []string{"PATH=" + path}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	bare, with := t.TempDir(), t.TempDir()
	for _, name := range []string{"python3", "curl", "protoc", "redis-server"} {
		if err := os.WriteFile(filepath.Join(with, name), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	out, err := tools(bare)
	for _, want := range []string{"TestDigestsInAnotherLanguage SKIPPED", "python3 (apt-get install python3)",
		"curl (apt-get install curl)", "check-race MISSING: a C compiler"} {
		if err != nil || !strings.Contains(regexp.MustCompile(` +`).ReplaceAllString(out, " "), want) {
			t.Errorf("without any tool: %v, want %q in\n%s", err, want, out)
		}
	}
	out, err = tools(with)
	out = regexp.MustCompile(`.* SKIPPED, for it needs root.*\n`).ReplaceAllString(out, "") // that test may be skipped
	if err != nil || strings.Contains(out, "SKIPPED") || !strings.Contains(out, "python3 with venv") {
		t.Errorf("with python3, without venv: %v\n%s", err, out)
	}
	if out, err = tools(bare, "cc"); err == nil || !strings.Contains(out, "missing: a C compiler") {
		t.Errorf("tools.sh cc: %v\n%s", err, out)
	}
}

// TestTrace: measurements use the trace that is named, or else the public one beside the checkout,
// and say which.
func TestTrace(t *testing.T) {
	script, err := os.ReadFile("trace.sh")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	perf, public := filepath.Join(root, "checkout", "perf"), filepath.Join(root, "shared", "traces")
	if err := os.MkdirAll(perf, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(perf, "trace.sh"), script, 0o700); err != nil {
		t.Fatal(err)
	}
	trace := func(env string) (name, said string) {
		c := exec.Command("/bin/sh", "perf/trace.sh")
		c.Dir, c.Env = filepath.Join(root, "checkout"), []string{"PATH=" + os.Getenv("PATH"), env}
		var stderr strings.Builder
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return strings.TrimSpace(string(out)), stderr.String()
	}
	if name, said := trace("TRACE="); name != "" || !strings.Contains(said, "generator") {
		t.Errorf("without any: %q, %s", name, said)
	}
	if err := os.MkdirAll(public, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(public, "conversation_trace.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	name, said := trace("TRACE=")
	if _, err := os.Stat(filepath.Join(root, "checkout", name)); err != nil || !strings.Contains(said, name) ||
		!strings.HasSuffix(name, ".jsonl") {
		t.Errorf("with the public one: %q (%v), %s", name, err, said)
	}
	if name, said := trace("TRACE=own.jsonl"); name != "own.jsonl" || !strings.Contains(said, name) {
		t.Errorf("named: %q, %s", name, said)
	}
	for _, user := range []string{"quality.sh", "kv.sh", "compare/dynamo/run.sh"} {
		if page, err := os.ReadFile(user); err != nil || !strings.Contains(string(page), "$(") ||
			!strings.Contains(string(page), "perf/trace.sh)") {
			t.Errorf("%s does not ask which trace: %v", user, err)
		}
	}
}

// TestEveryPrerequisiteIsNamed compares the lists of tools.sh with the tests that skip, and with
// the targets that make check runs.
func TestEveryPrerequisiteIsNamed(t *testing.T) {
	script, err := os.ReadFile("tools.sh")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range strings.Fields(string(regexp.MustCompile(`(?m)^check:(.*?)##`).FindSubmatch(makefile)[1])) {
		if !regexp.MustCompile(`(?m)^row ` + check + `( |$)`).Match(script) {
			t.Errorf("tools.sh does not say what %s needs", check)
		}
	}
	skips := regexp.MustCompile(`t\.Skipf?\(".*((needs|takes) root|is not installed)`)
	kernel := regexp.MustCompile(`Getenv\("BPF_REQUIRED"\)`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		folder := strings.TrimPrefix(filepath.Dir(path), "../")
		if kernel.Match(text) && !regexp.MustCompile("left-out(.|\n)*'"+folder+"[, ]").Match(script) {
			t.Errorf("%s puts programs into the kernel, and tools.sh does not say that check-bpf leaves that out", path)
		}
		if folder == "perf/kvabuse" { // skipped completely; make check-abuse runs it
			return err
		}
		if skips.Match(text) && !regexp.MustCompile("skipped '"+folder+"[, ]").Match(script) {
			t.Errorf("%s skips for want of a tool or right, and tools.sh does not say so", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
