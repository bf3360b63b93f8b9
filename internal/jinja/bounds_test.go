package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// TestBounds: no template exceeds its limits, for any variables.
func TestBounds(t *testing.T) {
	long := &Dict{}
	long.Set("x", strings.Repeat("a", 1000))
	for _, source := range []string{
		"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"{% set ns = namespace(s=x) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ " +
			"ns.s|length }}",
		"{% set ns = namespace(s=x) %}{% for i in range(60) %}{% set ns.s = ns.s|replace('a', 'aa') %}{% endfor %}",
		"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
		"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ " +
			"ns.l|tojson }}",
		"{% for i in range(2000) %}{{ x }}{% endfor %}",
		"{{ range(10000000) }}",
		"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(source, err)
		}
		if _, err := tmpl.Render(long, Limits{Bytes: 100_000, Steps: 1_000_000}); err == nil {
			t.Error("no bound: ", source)
		}
	}
	if _, err := Parse("{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}"); err == nil ||
		!strings.Contains(err.Error(), "nests deeper") {
		t.Error(err)
	}
	if _, err := Parse(strings.Repeat(" ", maxSource+1)); err == nil {
		t.Error("a template of any length")
	}
}

func TestStrftime(t *testing.T) {
	at := time.Date(2026, 11, 2, 15, 4, 5, 0, time.UTC)
	if got := strftime(at, "%d %b %Y, %A %H:%M:%S %% %B %j"); got != "02 Nov 2026, Monday 15:04:05 % November 306" {
		t.Error(got)
	}
}

func TestNumbersAreKept(t *testing.T) {
	for doc, want := range map[string]string{"1": "1", "1.50": "1.5", "1e5": "100000.0", "-0.0": "-0.0", "1E400": "",
		"123456789012345678901": ""} {
		c := jsonscan.New([]byte(doc))
		v, err := Read(&c)
		if (want == "") != errors.Is(err, ErrNumber) || want != "" && text(v) != want {
			t.Errorf("%s: %v %v", doc, v, err)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, c := range readCases(f) {
		f.Add(c.Template, []byte(c.Variables))
	}
	f.Fuzz(func(t *testing.T, source string, variables []byte) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		tmpl.TakesParts()
		c := jsonscan.New(variables)
		v, err := Read(&c)
		d, ok := v.(*Dict)
		if err != nil || c.Err() != nil || !ok {
			return
		}
		tmpl.Render(d, Limits{Bytes: 1 << 12, Steps: 1 << 12})
	})
}
