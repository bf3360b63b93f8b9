package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
)

type sample struct {
	Listen   string    `toml:"listen" flag:"listen" default:"127.0.0.1:8080" help:"Address to serve on."`
	Mode     string    `toml:"mode" flag:"mode" env:"CGN_SCORING" default:"score" oneof:"score|random|round_robin" help:"How to pick."`
	Backends []backend `toml:"backend" flag:"backend" help:"Engine to route to."`
	Limits   limits    `toml:"limits" help:"What a client may send."`
	TLS      tlsFiles  `toml:"tls" help:"Certificates."`

	Models map[string]model `toml:"models" help:"Settings of one model."`
}

type limits struct {
	MaxBody   Size     `toml:"max_body" default:"64MiB" help:"Largest body."`
	Streams   int      `toml:"max_streams" default:"100" help:"Most streams."`
	Idle      Duration `toml:"idle_timeout" default:"5s" help:"Idle time."`
	Ratio     float64  `toml:"ratio" default:"0.5" help:"A ratio."`
	Forward   bool     `toml:"forward_auth" help:"Forward it."`
	DropNames []string `toml:"drop" default:"x-a,x-b" help:"Names to drop."`
	Targets   []string `toml:"targets" split:"space" help:"URLs with options."`
}

func (l *limits) Validate() error {
	if l.Streams < 1 {
		return fmt.Errorf("max_streams = %d: must be at least 1", l.Streams)
	}
	return nil
}

type tlsFiles struct {
	Key string `toml:"key" help:"Key."`
	Pin Size   `toml:"pin" help:"Number."`
}

type model struct {
	FirstByte Duration `toml:"first_byte" default:"60s" help:"Wait."`
}

type backend struct {
	URL   string `toml:"url" help:"Where."`
	Slots int    `toml:"max_concurrent" default:"64" help:"Slots."`
}

func (b *backend) UnmarshalText(text []byte) error {
	if !strings.Contains(string(text), "://") {
		return errors.New("want a URL")
	}
	b.URL = string(text)
	return nil
}

func files(doc string) func(string) ([]byte, error) {
	return func(string) ([]byte, error) { return []byte(doc), nil }
}

func load(t *testing.T, doc string, env []string, args ...string) (*sample, error) {
	t.Helper()
	c := &sample{}
	err := Load(c, Options{Program: "p", Args: append([]string{"--config", "c.toml"}, args...), Env: env,
		ReadFile: files(doc)})
	return c, err
}

func TestPrecedence(t *testing.T) {
	doc := "[limits]\nmax_streams = 7\nidle_timeout = \"7s\"\nmax_body = \"7KiB\"\n"
	env := []string{"CGN_LIMITS_IDLE_TIMEOUT=8s", "CGN_LIMITS_MAX_BODY=8KiB", "PATH=x", "CGN_OTHER_THING=1"}
	c, err := load(t, doc, env, "--limits.max-body=9KiB")
	if err != nil {
		t.Fatal(err)
	}
	want := limits{MaxBody: 9 << 10, Streams: 7, Idle: Duration(8 * time.Second), Ratio: 0.5,
		DropNames: []string{"x-a", "x-b"}}
	if fmt.Sprint(c.Limits) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", c.Limits, want)
	}
	if c.Listen != "127.0.0.1:8080" {
		t.Errorf("default of listen: got %q", c.Listen)
	}
}

func TestListsAndTables(t *testing.T) {
	doc := "[[backend]]\nurl = \"http://a\"\n[[backend]]\nurl = \"http://b\"\nmax_concurrent = " +
		"3\n[models.m1]\n[models.m2]\nfirst_byte = \"2s\"\n"
	c, err := load(t, doc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Backends); got != "[{http://a 64} {http://b 3}]" {
		t.Errorf("backends from the file: %s", got)
	}
	if got := fmt.Sprint(c.Models); got != "map[m1:{1m} m2:{2s}]" {
		t.Errorf("models: %s", got)
	}
	if c, err = load(t, doc, nil, "--backend", "http://x,id=1", "--backend=http://y"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Backends); got != "[{http://x,id=1 64} {http://y 64}]" {
		t.Errorf("flags must replace the file's list: %s", got)
	}
	env := []string{"CGN_BACKEND=http://x http://y", `CGN_LIMITS_DROP=["a,b", "c"]`,
		"CGN_LIMITS_TARGETS=http://a,id=1 http://b"}
	if c, err = load(t, "", env); err != nil {
		t.Fatal(err)
	}
	if len(c.Limits.Targets) != 2 || c.Limits.Targets[0] != "http://a,id=1" {
		t.Errorf("list separated by spaces: %q", c.Limits.Targets)
	}
	if len(c.Backends) != 2 || len(c.Limits.DropNames) != 2 || c.Limits.DropNames[0] != "a,b" {
		t.Errorf("lists from the environment: %v %q", c.Backends, c.Limits.DropNames)
	}
}

func TestProblems(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		env, args []string
		want      []string
	}{
		{"unknown key", "listen = \":1\"\n\n[limits]\nmax_bdy = 1\n", nil, nil,
			[]string{"c.toml:4: limits.max_bdy: unknown key; did you mean max_body?"}},
		{"unknown section", "[limit]\na = 1\n", nil, nil, []string{"c.toml:1: limit: unknown key; did you mean limits?"}},
		{"unlike anything", "[limits]\nzzz = 1\n", nil, nil, []string{"c.toml:2: limits.zzz: unknown key"}},
		{"wrong types", "listen = 3\n[limits]\nmax_body = true\nmax_streams = \"x\"\nidle_timeout = 5\ndrop = \"a\"\n",
			nil, nil, []string{
				`c.toml:1: listen = 3: must be a string`, `c.toml:3: limits.max_body = true: must be a size`,
				`c.toml:4: limits.max_streams = "x": must be an integer`,
				`c.toml:5: limits.idle_timeout = 5: must be a duration`,
				`c.toml:6: limits.drop = "a": must be a list`}},
		{"bad values", "[limits]\nmax_body = \"64QiB\"\nidle_timeout = \"-1s\"\n", nil, nil,
			[]string{`limits.max_body = "64QiB": not a size`, `must not be negative`}},
		{"in a list of tables", "[[backend]]\nurl = \"http://a\"\n\n[[backend]]\nurll = 1\n", nil, nil,
			[]string{"c.toml:5: backend[1].urll: unknown key; did you mean url?"}},
		{"a key twice", "listen = \":1\"\nlisten = \":2\"\n", nil, nil, []string{"c.toml:2: Key 'listen' has already been defined."}},
		{"not TOML", "a = 1\nb = \n", nil, nil, []string{"c.toml:2: "}},
		{"oneof", "mode = \"scroe\"\n", nil, nil,
			[]string{`c.toml:1: mode = "scroe": must be one of score, random, round_robin; did you mean score?`}},
		{"UTF-16", "\xff\xfel\x00i\x00", nil, nil, []string{"c.toml: not UTF-8 at byte 0; save it as UTF-8"}},
		{"Latin-1", "listen = \"\xe4\"", nil, nil, []string{"c.toml: not UTF-8 at byte 10"}},
		{"nearly a setting", "", []string{"CGN_LISTN=1", "CGN_LIMIT_RATIO=1"}, nil, []string{
			"CGN_LISTN: unknown setting; did you mean CGN_LISTEN?",
			"CGN_LIMIT_RATIO: unknown setting; did you mean CGN_LIMITS_RATIO?"}},
		{"a setting without its section", "", []string{"CGN_RATIO=1", "CGN_KEY=1", "CGN_=1", "CGN_ATIO=1"}, nil,
			[]string{
				"CGN_RATIO: unknown setting; did you mean CGN_LIMITS_RATIO?",
				"CGN_KEY: unknown setting; did you mean CGN_TLS_KEY?"}},
		{"two names of one setting", "", []string{"CGN_SCORING=score", "CGN_MODE=random"}, nil, []string{
			"CGN_MODE: is the same setting as CGN_SCORING; give one of them"}},
		{"environment", "", []string{"CGN_LIMITS_MAX_STREAM=1", "CGN_LIMITS_RATIO=x"}, nil, []string{
			"CGN_LIMITS_MAX_STREAM: unknown setting; did you mean CGN_LIMITS_MAX_STREAMS?",
			`CGN_LIMITS_RATIO: limits.ratio = "x": not a number`}},
		{"flags", "", nil, []string{"--lisen", ":1", "word", "--backend", "a", "--mode"}, []string{
			"--lisen: unknown flag; did you mean --listen?", "word: not a flag", `--backend: backend = "a": want a URL`,
			"--mode: needs a value"}},
		{"validate", "[limits]\nmax_streams = 0\n", nil, nil, []string{"limits: max_streams = 0: must be at least 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := load(t, tc.doc, tc.env, tc.args...)
			var all *Error
			if !errors.As(err, &all) {
				t.Fatalf("want *Error, got %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in\n%v", want, err)
				}
			}
			if len(all.Problems) != len(tc.want) {
				t.Errorf("want %d problems, got\n%v", len(tc.want), err)
			}
		})
	}
}

func TestFileNotFound(t *testing.T) {
	err := Load(&sample{}, Options{Args: []string{"--config", "/does/not/exist.toml"}})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist.toml") {
		t.Errorf("got %v", err)
	}
}

func TestLineOfKeyAfterMultiLineString(t *testing.T) {
	doc := "listen = \"\"\"\nmode = 1\n\"\"\"\nmode = 1\n"
	_, err := load(t, doc, nil)
	if err == nil || !strings.Contains(err.Error(), "c.toml:4: mode") {
		t.Errorf("got %v", err)
	}
}

func TestCheckConfigPrintsWhatLoadReads(t *testing.T) {
	var out strings.Builder
	o := Options{Program: "p", Args: []string{"--check-config", "--config=c"}, Out: &out,
		ReadFile: files("mode = \"random\"\n[[backend]]\nurl = \"http://a\"\n[models.x]\n[limits]\nmax_body = 5\n")}
	if err := Load(&sample{}, o); !errors.Is(err, ErrAnswered) {
		t.Fatal(err)
	}
	c, err := load(t, out.String(), nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if c.Mode != "random" || len(c.Backends) != 1 || c.Limits.MaxBody != 5 || len(c.Models) != 1 {
		t.Errorf("got %+v from\n%s", c, out.String())
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out strings.Builder
	o := Options{Program: "cgn-x", Version: "v1", About: "Does x.", Out: &out}
	for _, arg := range []string{"-h", "--help", "--version"} {
		o.Args = []string{arg}
		if err := Load(&sample{}, o); !errors.Is(err, ErrAnswered) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	for _, want := range []string{"Usage: cgn-x [flags]", "Does x.", "--listen STRING",
		"default 127.0.0.1:8080, env CGN_LISTEN",
		"default score, env CGN_MODE or CGN_SCORING", "[[backend]]: Engine",
		"max_concurrent INTEGER\n        Slots. (default 64)",
		"[limits] What a client may send.", "--limits.max_body SIZE", "--limits.forward_auth\n", "cgn-x v1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}

func TestReference(t *testing.T) {
	var out strings.Builder
	if err := Reference(&out, "cgn-x", &sample{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `listen` | string | `127.0.0.1:8080` | `CGN_LISTEN` | `--listen` | Address to serve on. |",
		"### `[limits]`", "| `max_body` | size | `64MiB` | `CGN_LIMITS_MAX_BODY` | `--limits.max_body` | Largest " +
			"body. |",
		"### `[[backend]]`", "| `max_concurrent` | integer | `64` | Slots. |", "### `[models.NAME]`",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}

func TestProgramMistakesAreErrors(t *testing.T) {
	for name, dst := range map[string]any{
		"not a pointer": sample{},
		"no tag":        &struct{ A string }{},
		"type": &struct {
			A chan int `toml:"a"`
		}{},
		"bad default": &struct {
			A int `toml:"a" default:"x"`
		}{},
		"flag twice": &struct {
			A, B int `toml:"a"`
		}{},
		"raw duration": &struct {
			A complex64 `toml:"a"`
		}{},
		"default oneof": &struct {
			A string `toml:"a" default:"z" oneof:"x|y"`
		}{},
		"slice of chans": &struct {
			A []chan int `toml:"a"`
		}{},
	} {
		if err := Load(dst, Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDurationAndSizeText(t *testing.T) {
	for text, want := range map[string]string{"90s": "1m30s", "120s": "2m", "2h": "2h", "10m": "10m", "0": "0s",
		"1500ms": "1.5s"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.String() != want {
			t.Errorf("%s: got %s, %v", text, d, err)
		}
	}
	for text, want := range map[string]string{"1024": "1KiB", "64MiB": "64MiB", "1.5KiB": "1536", "1GB": "1GB",
		"0": "0", "3 GiB": "3GiB", "64mib": "64MiB", "64M": "64MiB", "2t": "2TiB", "64mb": "64MB",
		"1000MiB": "1000MiB", "1024KB": "1000KiB", "100GB": "100GB", "7 B": "7"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s.String() != want {
			t.Errorf("%s: got %s, %v", text, s, err)
		}
	}
	for _, bad := range []string{"", "-1", "MiB", "9999999999TiB", "1e3", "NaN", "inf", "1 2", "0x10"} {
		var s Size
		if err := s.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: accepted as %d", bad, s)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, tc := range [][2]string{{"max_bdoy", "max_body"}, {"maxbody", "max_body"}, {"q", ""}, {"unrelated", ""},
		{"lst", "list"}} {
		if got := Nearest(tc[0], []string{"max_body", "list", "zz"}); got != tc[1] {
			t.Errorf("%s: got %q, want %q", tc[0], got, tc[1])
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("listen = \":1\"\n[limits]\nmax_body = \"1MiB\"\n", "CGN_LIMITS_RATIO=1", "--mode=random")
	f.Add("[[backend]]\nurl = \"http://a\"\n", "CGN_BACKEND=http://a http://b", "--backend=http://c")
	f.Add("backend = [\"http://a\", {url = \"http://b\"}]\n[models.x]\nfirst_byte = \"1s\"\n",
		"CGN_LIMITS_DROP=[\"a\"]", "--limits.drop=a")
	f.Add("listen = \"\\u0007\\u000b\"\n[models.\"a\\u0000\"]\n", "CGN_LISTEN=\xff\v", "--listen=\x7f")
	f.Add("[models]\nx = 1\n", "CGN_LIMITS_X=", "-")
	f.Fuzz(func(t *testing.T, doc, env, arg string) {
		c := &sample{}
		err := Load(c, Options{Args: []string{"--config=c", arg}, Env: []string{env}, ReadFile: files(doc),
			Out: &strings.Builder{}})
		if err != nil {
			_ = err.Error()
			return
		}
		s, err := inspect(c)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := writeEffective(&out, s, "p", nil, nil); err != nil {
			t.Fatal(err)
		}
		var tree map[string]any
		if _, err := toml.Decode(out.String(), &tree); err != nil {
			t.Fatalf("the effective configuration is not TOML: %v\n%s", err, out.String())
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add("64MiB")
	f.Add("1m30s")
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Size
		if s.UnmarshalText([]byte(text)) == nil {
			if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
				t.Fatalf("size %q: %d, then %d, %v", text, s, again, err)
			}
		}
		var d, back Duration
		if d.UnmarshalText([]byte(text)) == nil {
			if err := back.UnmarshalText([]byte(d.String())); err != nil || back != d {
				t.Fatalf("duration %q: %s, then %s, %v", text, d, back, err)
			}
		}
	})
}

type twinEngine struct {
	URL  string `toml:"url" default:"none" help:"where"`
	Deep struct {
		N int `toml:"n" default:"3" help:"how many"`
	} `toml:"deep" help:"more"`
}

func (e *twinEngine) Validate() error {
	if e.URL == "none" {
		return Missing{Wrong("engine", "url", "empty; set %s, not engine.url of %q (%w)", Mention{"url", "--engine"},
			"/etc engine.url (--x)", fs.ErrNotExist)}
	}
	return nil
}

type twinElement struct {
	ID     string     `toml:"id" help:"who"`
	Engine twinEngine `toml:",inline"`
}

type twinConfig struct {
	Engine  twinEngine    `toml:"engine" help:"one"`
	Engines []twinElement `toml:"engine" help:"several"`
}

// TestTwin: a key that is one table or a list of tables. The elements have the section's keys and
// others.
func TestTwin(t *testing.T) {
	load := func(doc string) (c twinConfig, shown string, err error) {
		var out strings.Builder
		err = Load(&c, Options{Program: "x", Args: []string{"--config", "f", "--check-config"}, Out: &out,
			ReadFile: func(string) ([]byte, error) { return []byte(doc), nil }})
		return c, out.String(), err
	}
	c, shown, err := load("[engine]\nurl = \"a\"\n")
	if !errors.Is(err, ErrAnswered) || c.Engine.URL != "a" || c.Engines != nil ||
		!strings.Contains(shown, "[engine]\nurl = \"a\"") || strings.Contains(shown, "engine = ") {
		t.Errorf("one: %+v, %v\n%s", c, err, shown)
	}
	c, shown, err = load("[[engine]]\nid = \"x\"\nurl = \"a\"\n[[engine]]\nurl = \"b\"\n[engine.deep]\nn = 4\n")
	if !errors.Is(err, ErrAnswered) || len(c.Engines) != 2 || c.Engines[0].ID != "x" ||
		c.Engines[0].Engine.Deep.N != 3 || c.Engines[1].Engine.URL != "b" || c.Engines[1].Engine.Deep.N != 4 ||
		strings.Contains(shown, "[engine") {
		t.Errorf("two: %+v, %v\n%s", c, err, shown)
	}
	for doc, want := range map[string]string{
		"[[engine]]\nurl = \"a\"\n[[engine]]\n": "configuration: f:3: " +
			"engine[1].url: empty; set engine[1].url, not engine.url of \"/etc engine.url (--x)\" (file does " +
			"not exist)",
		"[[engine]]\nurl = \"a\"\n[[engine]]\nurl = \"b\"\n[engine.deep]\nm = 1\n": "configuration: f:6: " +
			"engine[1].deep.m: unknown key",
		"[engine]\nurl = \"a\"\n[[engine]]\n": "configuration: f:3: engine is " +
			"written as one table, [engine], and as a list of them, [[engine]]; write one of the two",
		"[[engine]]\n[engine]\nurl = \"a\"\n": "configuration: f:2: engine is " +
			"written as one table, [engine], and as a list of them, [[engine]]; write one of the two",
	} {
		if _, _, err := load(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", doc, err, want)
		}
	}
}
