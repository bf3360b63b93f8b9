package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are the documents for users of other routers.
const pages = "../../docs/from-*.md"

// TestOurNamesOnPages checks the names that the pages give to things of this project: settings,
// flags, commands, endpoints, headers, metrics and keys of documents.
func TestOurNamesOnPages(t *testing.T) {
	files, err := filepath.Glob(pages)
	if err != nil || len(files) != 5 {
		t.Fatalf("%v: %q", err, files)
	}
	n := newNames(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p := pageOf(string(text))
		if len(p.here) < 30 || len(p.fences) < 3 {
			t.Errorf("%s: only %d names in tables, and %d commands", file, len(p.here), len(p.fences))
		}
		for _, problem := range n.problems(t, p) {
			t.Errorf("%s: %s", filepath.Base(file), problem)
		}
	}
}

// TestWrongNamesAreFound checks that a page with a name that does not exist has a problem.
func TestWrongNamesAreFound(t *testing.T) {
	n := newNames(t)
	for _, text := range []string{
		"`x-cgn-nod`", "`router.sessions.ttl`", "`cost.heat`", "`cgn_router_nothing_total`", "`cgn-ctl clusters nodes`",
		"`cgn-ctl route explain --prompts x`", "[a](policy.md#no-such-heading)", "[a](no-such.md)", "[a](#b)",
		row("`--modes`"), row("`--mode kvv`"), row("`GET /busy_thresholds`"), row("`POST /readyz`"), row("`x-session`"),
		row("`agent_hints.isl`"), row("`[[engines]]`"), row("`least_load`"), row("`router.mod`"),
		fence("bin/cgn-router --backends http://127.0.0.1:1"),
		fence("bin/cgn-router --mode nothing --backend http://127.0.0.1:1"), fence("bin/cgn-ctl sim --modle x"),
		"```json\n{\"mode\":\"cost\",\"cost\":{\"heat\":1}}\n```\n",
		"```toml\n[router]\nlisten_at = \"127.0.0.1:1\"\n```\n",
	} {
		if len(n.problems(t, pageOf(text))) == 0 {
			t.Errorf("no problem in\n%s", text)
		}
	}
	for _, text := range []string{
		"`x-cgn-node` `router.session.ttl` `cost.temperature` `cgn_router_filtered_total` `cgn-ctl top --once`",
		row("`--mode kv`, `GET /busy_threshold` and `/readyz`"),
		row("`x-session-id`, `agent_hints.osl`, `router.itl_target`"),
		row("`[[engine]]`, `least_loaded`, `cost.overlap_score_weight`, `kv_events`"),
		"[a](policy.md#the-cost)", "## A b\n[a](#a-b)",
		"| Dynamo | here |\n|---|---|\n| `--nothing` | none |\n", "```json\n{\"mode\":\"cost\"}\n```\n",
	} {
		if problems := n.problems(t, pageOf(text)); len(problems) > 0 {
			t.Errorf("%q in\n%s", problems, text)
		}
	}
}

func row(here string) string { return "| Dynamo | here |\n|---|---|\n| a | " + here + " |\n" }

func fence(line string) string { return "```\n" + line + "\n```\n" }

// page is what a document says about names.
type page struct {
	here   []string // code in the columns named here
	spans  []string // all code between single backquotes
	fences []block
	links  []string // to documents, with their headings; to this one without a name
	titles []string // anchors of the headings
}

// block is fenced code.
type block struct{ language, text string }

var (
	code = regexp.MustCompile("`([^`]+)`")
	link = regexp.MustCompile(`\]\(([^)#:]*\.md(?:#[^)]+)?|#[^)]+)\)`)
)

// pageOf reads a document. The first row of a table names its columns.
func pageOf(text string) (p page) {
	ours, inTable := -1, false
	var open *block
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if language, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			if open != nil {
				p.fences, open = append(p.fences, *open), nil
			} else {
				open = &block{language: language}
			}
			continue
		}
		if open != nil {
			open.text += line + "\n"
			continue
		}
		if strings.HasPrefix(line, "#") {
			p.titles = append(p.titles, heading(line))
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			p.links = append(p.links, m[1])
		}
		p.spans = append(p.spans, codeIn(line)...)
		cells := strings.Split(line, "|")
		switch table := strings.HasPrefix(line, "|"); {
		case !table:
			inTable = false
		case !inTable:
			inTable, ours = true, slices.Index(cells, " here ")
		case ours >= 0 && ours < len(cells):
			p.here = append(p.here, codeIn(cells[ours])...)
		}
	}
	return p
}

func codeIn(line string) (spans []string) {
	for _, m := range code.FindAllStringSubmatch(line, -1) {
		spans = append(spans, m[1])
	}
	return spans
}

var (
	dotted  = regexp.MustCompile(`^([a-z_]+)\.[a-z_.]+$`)
	command = regexp.MustCompile(`(?m)^(?:bin/)?(cgn-(?:ctl|router)) .*$`)
	aFile   = regexp.MustCompile(`\.(toml|json|md|sock)$`)
)

// problems returns what is wrong with a page's names.
func (n *names) problems(t *testing.T, p page) (problems []string) {
	note := func(what, why string) {
		if why != "" {
			problems = append(problems, what+": "+why)
		}
	}
	for _, span := range p.here {
		note(span, n.unknown(span))
	}
	for _, span := range p.spans {
		switch {
		case strings.HasPrefix(span, "x-cgn-"), strings.HasPrefix(span, "cgn_"), strings.HasPrefix(span, "cgn-ctl "):
			note(span, n.unknown(span))
		case n.isSetting(span):
			note(span, n.unknown(span))
		}
	}
	for _, b := range p.fences {
		switch b.language {
		case "json":
			note(b.text, n.policy(b.text))
		case "toml":
			note(b.text, routerFile(t, b.text))
		default:
			for _, line := range command.FindAllString(strings.ReplaceAll(b.text, "\\\n", ""), -1) {
				note(line, n.unknown(strings.TrimPrefix(line, "bin/")))
			}
		}
	}
	for _, to := range p.links {
		note(to, p.link(to))
	}
	return problems
}

// isSetting says whether a name looks like that of a setting.
func (n *names) isSetting(name string) bool {
	m := dotted.FindStringSubmatch(name)
	return m != nil && !aFile.MatchString(name) && (n.sections[m[1]] || n.inPolicy(m[1]))
}

// heading returns the anchor of a heading's line.
func heading(line string) string {
	text := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
	return strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(text, ""), " ", "-")
}

// link says what is wrong with a link from a page.
func (p *page) link(to string) string {
	file, anchor, _ := strings.Cut(to, "#")
	if file == "" {
		return unless(slices.Contains(p.titles, anchor), "no heading of that name")
	}
	text, err := os.ReadFile(filepath.Join("../../docs", file))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(text)) {
		if anchor == "" || strings.HasPrefix(line, "#") && heading(line) == anchor {
			return ""
		}
	}
	return "no heading of that name"
}

// nested returns an object with one member at the end of a path of keys.
func nested(path string, value any) []byte {
	keys := strings.Split(path, ".")
	for _, key := range slices.Backward(keys) {
		value = map[string]any{key: value}
	}
	doc, err := json.Marshal(value)
	if err != nil {
		panic(err) // keys and values of the tests
	}
	return doc
}
