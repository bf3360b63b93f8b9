package config

import (
	"strings"
	"testing"
)

// moved has a section and a key with older names.
type moved struct {
	Mode  string       `toml:"mode" default:"a"`
	Inner movedSection `toml:"inner" gone:"limit"`
}

type movedSection struct {
	Caps  movedCaps `toml:"caps" was:"caps"`
	Speed int       `toml:"speed" was:"inner.pace" flag:"speed"`
}

type movedCaps struct {
	Queue int `toml:"queue" default:"4"`
	All   int `toml:"all" default:"9"`
}

func TestNamesOfOnceAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		env, args []string
		want      string
	}{
		{"a section", "[inner]\n[caps]\nqueue = 7\n", nil, nil, "c.toml:2: caps: " + renamed("inner.caps")},
		{"its variable", "", []string{"CGN_CAPS_QUEUE=7"}, nil, "CGN_CAPS_QUEUE: " + renamed("inner.caps.queue")},
		{"its flag", "", nil, []string{"--caps.queue=7"}, "--caps.queue: " + renamed("inner.caps.queue")},
		{"a key", "[inner]\npace = 7\n", nil, nil, "c.toml:2: inner.pace: " + renamed("inner.speed")},
		{"the key's variable", "", []string{"CGN_INNER_PACE=7"}, nil, "CGN_INNER_PACE: " + renamed("inner.speed")},
		{"a key that is gone", "[inner]\nlimit = 7\n", nil, nil, "c.toml:2: inner.limit: " + goneReason},
		{"the gone key's variable", "", []string{"CGN_INNER_LIMIT=1"}, nil, "CGN_INNER_LIMIT: " + goneReason},
		{"the gone key's flag", "", nil, []string{"--inner-limit=1"}, "--inner-limit: " + goneReason},
	} {
		err := Load(&moved{}, Options{Program: "p", Args: append([]string{"--config", "c.toml"}, tc.args...), Env: tc.env,
			ReadFile: files(tc.doc)})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
