package config

import (
	"io"
	"strings"
	"testing"
)

func TestABooleanTakesItsValueAfterAnEqualsSign(t *testing.T) {
	type settings struct {
		On bool `toml:"on" default:"true"`
	}
	var s settings
	err := Load(&s, Options{Args: []string{"--on", "false"}, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "a boolean is written --on=false") {
		t.Errorf("%v", err)
	}
	if err := Load(&s, Options{Args: []string{"--on=false"}}); err != nil || s.On {
		t.Errorf("%v, %v", err, s.On)
	}
}

// TestASettingsFullNameAsAFlag: the message names the setting's flag, not a similar one.
func TestASettingsFullNameAsAFlag(t *testing.T) {
	type engine struct {
		URL string `toml:"url" flag:"engine"`
		CA  string `toml:"ca"`
	}
	type list struct {
		Name string `toml:"name"`
	}
	var s struct {
		Engine engine `toml:"engine"`
		Kernel string `toml:"kernel" flag:"telemetry"`
		Deep   struct {
			Models []list `toml:"models"`
		} `toml:"deep"`
	}
	for arg, want := range map[string]string{
		"--engine.url=x": "--engine.url: unknown flag; the flag of engine.url is --engine",
		"--engine_url=x": "--engine_url: unknown flag; the flag of engine.url is --engine",
		"--engine-url":   "--engine-url: unknown flag; the flag of engine.url is --engine",
		"--engine.urk=x": "--engine.urk: unknown flag; did you mean --engine.ca?",
		"--kernel=on":    "--kernel: unknown flag; the flag of kernel is --telemetry",
		"--deep.models=x": "--deep.models: unknown flag; deep.models has none: set it in the file (--config), as " +
			"models in [deep]",
		"--ca=x":      "--ca: unknown flag; did you mean --engine.ca?",
		"--check=x":   "--check: unknown flag; did you mean --check-config?",
		"--nothing=x": "--nothing: unknown flag (see --help)",
	} {
		if err := Load(&s, Options{Args: []string{arg}, Out: io.Discard}); err == nil ||
			err.Error() != "configuration: "+want {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// TestATableWhereAListIsMeant: the message says that a list of tables was expected.
func TestATableWhereAListIsMeant(t *testing.T) {
	var s struct {
		Backends []struct {
			URL string `toml:"url"`
		} `toml:"backend"`
	}
	err := Load(&s, Options{Args: []string{"--config", "f"}, ReadFile: func(string) ([]byte, error) {
		return []byte("[backend]\nurl = \"x\"\n"), nil
	}})
	if err == nil || err.Error() != "configuration: f:1: backend: is a list of tables; write [[backend]] instead of "+
		"[backend]" {
		t.Errorf("%v", err)
	}
}
