package config

import (
	"errors"
	"fmt"
	"slices"
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
	Speed int       `toml:"speed" was:"old.speed" flag:"speed"`
}

type movedCaps struct {
	Queue int `toml:"queue" default:"4"`
	All   int `toml:"all" default:"9"`
}

func (c *movedCaps) Validate() error {
	if c.Queue < 1 {
		return Wrong("inner.caps", "queue", "%d is too small", c.Queue)
	}
	return nil
}

func loadMoved(doc string, env []string, args ...string) (*moved, []string, error) {
	c, renamed := &moved{}, []string(nil)
	err := Load(c, Options{
		Program: "p", Args: append([]string{"--config", "c.toml"}, args...), Env: env, ReadFile: files(doc),
		Renamed: func(given, name string) { renamed = append(renamed, given+" > "+name) },
	})
	return c, renamed, err
}

func TestOlderNamesAreTakenWithAWarning(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		env, args []string
		warned    []string
	}{
		{"new names", "[inner]\nspeed = 1\n[inner.caps]\nqueue = 7\n", nil, nil, nil},
		{"a section in the file", "[caps]\nqueue = 7\n[old]\nspeed = 1\n", nil, nil,
			[]string{"c.toml:1: caps > inner.caps", "c.toml:4: old.speed > inner.speed"}},
		{"both sections, other keys", "[inner]\nspeed = 1\n[inner.caps]\nall = 9\n[caps]\nqueue = 7\n", nil, nil,
			[]string{"c.toml:5: caps > inner.caps"}},
		{"variables", "", []string{"CGN_CAPS_QUEUE=7", "CGN_OLD_SPEED=1"}, nil,
			[]string{"CGN_CAPS_QUEUE > CGN_INNER_CAPS_QUEUE", "CGN_OLD_SPEED > CGN_INNER_SPEED"}},
		{"flags", "", nil, []string{"--caps-queue=7", "--speed=1"}, []string{"--caps-queue > --inner.caps.queue"}},
		{"a flag over the file", "[caps]\nqueue = 3\n", nil, []string{"--inner.caps.queue=7", "--speed=1"},
			[]string{"c.toml:1: caps > inner.caps"}},
	} {
		c, warned, err := loadMoved(tc.doc, tc.env, tc.args...)
		want := moved{"a", movedSection{movedCaps{7, 9}, 1}}
		if err != nil || *c != want || !slices.Equal(warned, tc.warned) {
			t.Errorf("%s: %v, %+v, warned %q", tc.name, err, *c, warned)
		}
	}
}

func TestOlderNamesAndProblems(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		env, args []string
		want      string
	}{
		{"both in the file", "[inner.caps]\nqueue = 7\n[caps]\nqueue = 7\n", nil, nil,
			"c.toml:4: caps.queue: is the older name of inner.caps.queue, which is given too; give one of them"},
		{"both variables", "", []string{"CGN_CAPS_QUEUE=7", "CGN_INNER_CAPS_QUEUE=7"}, nil,
			"CGN_INNER_CAPS_QUEUE: is the same setting as CGN_CAPS_QUEUE; give one of them"},
		{"both flags", "", nil, []string{"--caps.queue=7", "--inner.caps.queue=7"},
			"--caps.queue: is the older name of --inner.caps.queue, which is given too"},
		{"an unknown key", "[caps]\nqueu = 7\n", nil, nil,
			"c.toml:2: inner.caps.queu: unknown key; did you mean queue?"},
		{"a bad value", "mode = \"b\"\n[caps]\nqueue = 0\n", nil, nil, "c.toml:3: inner.caps.queue: 0 is too small"},
		{"no table", "caps = 3\n", nil, nil, "c.toml:1: inner.caps = 3: must be a table"},
		{"no table around it", "inner = 3\n[caps]\nqueue = 7\n", nil, nil, "c.toml:1: inner = 3: must be a table"},
		{"a key that is gone", "[inner]\nlimit = 7\n", nil, nil, "c.toml:2: inner.limit: " + goneReason},
		{"its variable", "", []string{"CGN_INNER_LIMIT=1"}, nil, "CGN_INNER_LIMIT: " + goneReason},
		{"its flag", "", nil, []string{"--inner-limit=1"}, "--inner-limit: " + goneReason},
		{"an unknown variable", "", []string{"CGN_CAPS_QUEU=1"}, nil, "CGN_CAPS_QUEU: unknown setting"},
	} {
		if _, _, err := loadMoved(tc.doc, tc.env, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestCheckConfigWarnsOfOlderNames(t *testing.T) {
	var out strings.Builder
	err := Load(&moved{}, Options{Program: "p", Args: []string{"--config=c.toml", "--check-config"},
		ReadFile: files("[caps]\nqueue = 7\n"), Out: &out})
	want := "# warning: c.toml:1: caps is an older name; write inner.caps\n"
	if !errors.Is(err, ErrAnswered) || !strings.Contains(out.String(), want) ||
		!strings.Contains(out.String(), "[inner.caps]\nqueue = 7\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestOldNamesCollide: an older name that equals another setting's name is refused.
func TestOldNamesCollide(t *testing.T) {
	err := Load(&struct {
		A int `toml:"a"`
		B int `toml:"b" was:"a"`
	}{}, Options{})
	if err == nil || !strings.Contains(fmt.Sprint(err), "are both named CGN_A") {
		t.Error(err)
	}
}
