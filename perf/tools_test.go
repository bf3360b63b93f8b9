package perf_test

import (
	"os"
	"os/exec"
	"path/filepath"
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
	for _, want := range []string{"TestDigestsInAnotherLanguage SKIPPED", "python3 (apt-get install python3)", "curl (apt-get install curl)", "check-race    MISSING: a C compiler"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("without any tool: %v, want %q in\n%s", err, want, out)
		}
	}
	out, err = tools(with)
	out = strings.ReplaceAll(out, "all tests SKIPPED, for it needs root", "") // as it may
	if err != nil || strings.Contains(out, "SKIPPED") || !strings.Contains(out, "python3 with venv") {
		t.Errorf("with python3, without venv: %v\n%s", err, out)
	}
	if out, err = tools(bare, "cc"); err == nil || !strings.Contains(out, "missing: a C compiler") {
		t.Errorf("tools.sh cc: %v\n%s", err, out)
	}
}
