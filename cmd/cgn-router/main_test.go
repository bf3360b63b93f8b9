package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestAnEnvironmentSharedWithAnAgent checks that settings of the agent alone are neither refused
// nor reported.
func TestAnEnvironmentSharedWithAnAgent(t *testing.T) {
	page, err := os.ReadFile("../../deploy/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"CGN_ADMIN=127.0.0.1:9091", "CGN_SOMETHING=1"}
	for _, name := range regexp.MustCompile(`CGN_(AGENT|ENGINE)_[A-Z_]+`).FindAllString(string(page), -1) {
		env = append(env, name+"=1")
	}
	if len(env) < 20 {
		t.Fatalf("the reference has %v only", env)
	}
	var out bytes.Buffer
	if err := run([]string{"--backend", "http://e:1", "--check-config"}, env, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "is in the environment and is no setting"); n != 1 {
		t.Errorf("%d are reported, not CGN_SOMETHING alone:\n%s", n, out.String())
	}
}

// TestHelpExplainsBackends checks that the help gives the default and meaning of every option of
// --backend.
func TestHelpExplainsBackends(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"--help"}, nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"[[backend]]", "max_concurrent INTEGER", "503 with Retry-After", "(default 0)", "api_key_file STRING",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}
