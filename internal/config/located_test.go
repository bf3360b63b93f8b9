package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

type card struct {
	Names []string   `toml:"names"`
	Least int        `toml:"least" default:"1"`
	Peers []cardPeer `toml:"peers"`
}

type cardPeer struct {
	Name string `toml:"name"`
	Lane string `toml:"lane"`
}

type cards struct {
	Card  card `toml:"card"`
	Fleet struct {
		Lane string `toml:"lane"`
	} `toml:"fleet"`
}

func (c *cards) Validate() error {
	var all []error
	if slices.Contains(c.Card.Names, "bad") {
		all = append(all, errors.New(`card.names: "bad" is none`))
	}
	if c.Card.Least < 1 {
		all = append(all, errors.New("card.least: must be above 0"))
	}
	for i, p := range c.Card.Peers {
		if p.Name == "" {
			all = append(all, Wrong("card", "peers["+string(rune('0'+i))+"].name", "empty"))
		}
	}
	return errors.Join(all...)
}

// TestValidateTellsTheLine: the line is reported for a setting in the file, and the variable for
// one in the environment.
func TestValidateTellsTheLine(t *testing.T) {
	for _, c := range []struct {
		doc  string
		args []string
		env  string
		want string
	}{
		{"[card]\nleast = 1\nnames = [\"bad\"]\n", nil, "", `f:3: card.names: "bad" is none`},
		{"[card]\nnames = [\"bad\"]\n", []string{"--card.names=bad"}, "", `configuration: card.names: "bad" is none`},
		{"[card]\nnames = [\"bad\"]\n", nil, "CGN_CARD_NAMES=bad,x", `configuration: CGN_CARD_NAMES: card.names: "bad" is none`},
		{"", []string{"--card.names=bad"}, "CGN_CARD_NAMES=x", `configuration: card.names: "bad" is none`},
		{"[card]\n", []string{"--card.least=0"}, "", "configuration: card.least: must be above 0"},
		{"[[card.peers]]\nname = \"a\"\n[[card.peers]]\nlane = \"x\"\n", nil, "", "f:3: card.peers[1].name: empty"},
		{"[card]\nlane = \"x\"\n", nil, "", "f:2: card.lane: unknown key; did you mean fleet.lane?"},
		{"[card]\nnames = [\"bad\"]\nx\n", nil, "", "f:3: expected"},
	} {
		var s cards
		err := Load(&s, Options{Args: append([]string{"--config", "f"}, c.args...), Env: []string{c.env},
			ReadFile: func(string) ([]byte, error) { return []byte(c.doc), nil }})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.doc, err, c.want)
		}
	}
}

// TestListsInFlags: lists in flags are separated by commas, as in variables, or given several
// times. If elements may hold commas, each flag has one element.
func TestListsInFlags(t *testing.T) {
	var s struct {
		Names []string `toml:"names" default:"x"`
		URLs  []string `toml:"urls" split:"space"`
	}
	load := func(args ...string) string {
		s.Names, s.URLs = nil, nil
		if err := Load(&s, Options{Args: args}); err != nil {
			return err.Error()
		}
		return strings.Join(s.Names, "|") + " " + strings.Join(s.URLs, "|")
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "x "}, {[]string{"--names", "a,b"}, "a|b "}, {[]string{"--names", "a, b", "--names=c"}, "a|b|c "}, {[]string{"--names="}, " "},
		{[]string{"--names", `["a,b"]`}, "a,b "}, {[]string{"--names", "[a"}, `configuration: --names: names = "[a": not a TOML array of strings`},
		{[]string{"--urls", "u,id=1", "--urls", "v"}, "x u,id=1|v"},
	} {
		if got := load(c.args...); got != c.want {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
	}
}
