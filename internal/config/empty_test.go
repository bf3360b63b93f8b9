package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// guarded has a setting that nobody may set to nothing.
type guarded struct {
	Auth struct {
		Keys  string `toml:"keys_file" empty:"refused" flag:"keys-file"`
		Other string `toml:"other" default:"x"`
	} `toml:"auth"`
}

// TestEmptyIsRefused checks that each source refuses an empty value of a setting that protects
// something, that the default may be empty, and that what --check-config prints can be read again.
func TestEmptyIsRefused(t *testing.T) {
	load := func(doc string, env []string, args ...string) (string, error) {
		var out bytes.Buffer
		err := Load(&guarded{}, Options{Program: "p", Args: append(args, "--config", "c.toml"), Env: env,
			ReadFile: files(doc), Out: &out})
		return out.String(), err
	}
	for where, try := range map[string]func() (string, error){
		"--keys-file: ": func() (string, error) { return load("", nil, "--keys-file", "") },
		"c.toml:2: ":    func() (string, error) { return load("[auth]\nkeys_file = ''", nil) },
		"CGN_AUTH_KEYS_FILE: ": func() (string, error) {
			return load("[auth]\nkeys_file = 'k'", []string{"CGN_AUTH_KEYS_FILE="})
		},
	} {
		want := where + `auth.keys_file = "": is empty; leave it out or name one`
		if _, err := try(); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	printed, err := load("[auth]\nother = ''", nil, "--check-config")
	if !errors.Is(err, ErrAnswered) {
		t.Fatal(err)
	}
	if _, err := load(printed, nil); err != nil {
		t.Errorf("%v of\n%s", err, printed)
	}
}
