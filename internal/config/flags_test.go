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
	if err == nil || !strings.Contains(err.Error(), "a boolean is written --on=true or --on=false") {
		t.Errorf("%v", err)
	}
	if err := Load(&s, Options{Args: []string{"--on=false"}}); err != nil || s.On {
		t.Errorf("%v, %v", err, s.On)
	}
}

// TestAValueWithoutQuotes: the message names the key and says what to write.
func TestAValueWithoutQuotes(t *testing.T) {
	var s struct {
		Cache struct {
			RAM string `toml:"ram"`
			On  bool   `toml:"on"`
			Use string `toml:"use" default:"auto" oneof:"auto|true|false"`
			Do  string `toml:"do" default:"auto" oneof:"auto|on|off"`
		} `toml:"cache"`
		Users []struct {
			Name string `toml:"name"`
		} `toml:"user"`
	}
	for doc, want := range map[string]string{
		"[cache]\nram = 1GiB # size":         `f:2: cache.ram = 1GiB: put it in quotes: ram = "1GiB"`,
		"[cache]\nram = 9999999999999999999": "f:2: cache.ram = 9999999999999999999: is beyond the whole numbers that a computer counts with",
		"[cache]\nram = 127.0.0.1:1":         `f:2: cache.ram = 127.0.0.1:1: put it in quotes: ram = "127.0.0.1:1"`,
		"[[user]]\n[[user]]\nname = /tmp":    `f:3: user[1].name = /tmp: put it in quotes: name = "/tmp"`,
		"[cache]\non = yes":                  "f:2: cache.on = yes: write true or false",
		"[cache]\non = \"yes\"":              `f:2: cache.on = "yes": must be true or false, without quotes`,
		"[cache]\nuse = auto":                `f:2: cache.use = auto: put it in quotes: use = "auto"`,
		"[cache]\nuse = yes":                 "f:2: cache.use = yes: must be one of auto, true, false, in quotes",
		"[cache]\nuse = 1":                   "f:2: cache.use = 1: must be one of auto, true, false, in quotes",
		"[cache]\ndo = on":                   `f:2: cache.do = on: put it in quotes: do = "on"`,
		"[cache]\ndo = true":                 "f:2: cache.do = true: must be one of auto, on, off, in quotes",
		"[cache]\nram = 'x":                  "f:2: cache.ram: strings cannot contain newlines",
		"[cache]\nram = 1\nram = 2":          "f:3: Key 'cache.ram' has already been defined.",
	} {
		err := Load(&s, Options{Args: []string{"--config", "f"}, ReadFile: func(string) ([]byte, error) {
			return []byte(doc + "\n"), nil
		}})
		if err == nil || err.Error() != "configuration: "+want {
			t.Errorf("%q: %v, want %s", doc, err, want)
		}
	}
}

// TestABareBooleanAmongWords checks that a setting whose words are auto, true and false takes true
// and false without quotes.
func TestABareBooleanAmongWords(t *testing.T) {
	for doc, want := range map[string]string{
		"use = true": "true", "use = false": "false", `use = "true"`: "true", `use = "auto"`: "auto", "": "auto",
	} {
		var s struct {
			Use string `toml:"use" default:"auto" oneof:"auto|true|false"`
		}
		err := Load(&s, Options{Args: []string{"--config", "f"}, ReadFile: func(string) ([]byte, error) {
			return []byte(doc + "\n"), nil
		}})
		if err != nil || s.Use != want {
			t.Errorf("%q: %q, %v", doc, s.Use, err)
		}
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
