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

// TestMissingToolsAreNamed: a test that make test cannot run for want of a tool is not skipped in silence.
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
	for _, want := range []string{"TestDigestsInAnotherLanguage SKIPPED", "python3 (apt-get install python3)", "curl (apt-get install curl)", "check-race MISSING: a C compiler"} {
		if err != nil || !strings.Contains(regexp.MustCompile(` +`).ReplaceAllString(out, " "), want) {
			t.Errorf("without any tool: %v, want %q in\n%s", err, want, out)
		}
	}
	out, err = tools(with)
	out = regexp.MustCompile(`.* SKIPPED, for it needs root.*\n`).ReplaceAllString(out, "") // as it may
	if err != nil || strings.Contains(out, "SKIPPED") || !strings.Contains(out, "python3 with venv") {
		t.Errorf("with python3, without venv: %v\n%s", err, out)
	}
	if out, err = tools(bare, "cc"); err == nil || !strings.Contains(out, "missing: a C compiler") {
		t.Errorf("tools.sh cc: %v\n%s", err, out)
	}
}

// TestEveryPrerequisiteIsNamed holds the lists of tools.sh to the tests that skip and to what make check runs.
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
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		folder := strings.TrimPrefix(filepath.Dir(path), "../")
		if folder == "perf/kvabuse" { // skipped as a whole; make check-abuse runs it
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
