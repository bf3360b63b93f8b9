package architecture

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notation describes how a file marks its comments. Markdown has prose instead.
type notation struct {
	mark        string // begins a comment that ends with its line
	open, close string // enclose a comment that begins its first line; empty: none
	markdown    bool
}

// TestProseFits checks comments in hand-written files that are not Go, and the prose of documents.
func TestProseFits(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if unwritten(rel) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		n := notationOf(rel, at)
		if n == (notation{}) {
			return nil
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		seen++
		for _, line := range wideProse(rel, string(text), n) {
			t.Error(line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Errorf("only %d files were looked at", seen)
	}
}

// unwritten reports whether nobody writes the files of a folder by hand.
func unwritten(rel string) bool {
	name := path.Base(rel)
	switch {
	case rel == ".", rel == ".ci":
		return false
	case rel == "bin", rel == "deploy/reference":
		return true
	}
	return strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules"
}

// notationOf returns the notation of a file by its name, or else by its first two bytes. It returns
// the zero notation if the file has neither comments nor prose.
func notationOf(rel, at string) notation {
	switch path.Ext(rel) {
	case ".md":
		return notation{markdown: true}
	case ".c", ".h", ".s", ".proto", ".js", ".mjs", ".rs":
		return notation{mark: "//", open: "/*", close: "*/"}
	case ".py":
		return notation{mark: "#", open: `"""`, close: `"""`}
	case ".sh", ".toml", ".service", ".yml", ".yaml":
		return notation{mark: "#"}
	}
	switch path.Base(rel) {
	case "Makefile", "Containerfile", "Dockerfile", ".gitignore", ".dockerignore":
		return notation{mark: "#"}
	}
	if path.Ext(rel) == "" && isScript(at) {
		return notation{mark: "#"}
	}
	return notation{}
}

func isScript(at string) bool {
	f, err := os.Open(at)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [2]byte
	_, err = f.Read(head[:])
	return err == nil && string(head[:]) == "#!"
}

// wideProse returns the lines of a file whose comments or prose are too wide.
func wideProse(name, text string, n notation) (wide []string) {
	lines := strings.Split(text, "\n")
	limits := n.commentLimits(lines)
	if n.markdown {
		limits = proseLimits(lines)
	}
	for i, limit := range limits {
		if is := columns(shortURLs(lines[i])); limit > 0 && is > limit {
			wide = append(wide, fmt.Sprintf("%s:%d: %d columns, at most %d", name, i+1, is, limit))
		}
	}
	return wide
}

var url = regexp.MustCompile(`\bhttps?://\S+`)

// shortURLs removes web addresses, which cannot be broken.
func shortURLs(line string) string { return url.ReplaceAllString(line, "") }

// commentLimits returns the most columns of each line, or 0 if the line has no comment. A comment
// behind code has the limit of code. Rows of a table, the line that names an interpreter, and help
// texts of make's targets have no limit.
func (n notation) commentLimits(lines []string) []int {
	limits := make([]int, len(lines))
	block := false
	for i, line := range lines {
		code, comment := n.split(line, &block)
		switch {
		case comment == "" || strings.HasPrefix(comment, n.mark+"\t") || strings.HasPrefix(comment, "#!"):
		case strings.HasPrefix(comment, "## ") && code != "":
		case code != "":
			limits[i] = codeColumns
		default:
			limits[i] = commentColumns
		}
	}
	return limits
}

// split cuts a line where its comment begins. Marks in quotes begin no comment. block tells whether
// the line begins in an enclosed comment, and then whether the next line does.
func (n notation) split(line string, block *bool) (code, comment string) {
	line = strings.TrimSpace(line)
	if *block {
		*block = !strings.Contains(line, n.close)
		return "", line
	}
	if inside, opened := strings.CutPrefix(line, n.open); opened && n.open != "" {
		*block = !strings.Contains(inside, n.close)
		return "", line
	}
	quote := rune(0)
	for i, c := range line {
		rest := line[i:]
		free := quote == 0 && (i == 0 || strings.ContainsAny(line[i-1:i], " \t"))
		switch {
		case free && strings.HasPrefix(rest, n.mark):
			return line[:i], rest
		case quote == c:
			quote = 0
		case quote == 0 && strings.ContainsRune("\"'`", c):
			quote = c
		}
	}
	return line, ""
}

// proseLimits returns the most columns of each line of a document, or 0 for a line of code, of a
// table, of a heading or of a picture.
func proseLimits(lines []string) []int {
	limits := make([]int, len(lines))
	fenced, indented, blank := false, false, true
	for i, line := range lines {
		text := strings.TrimSpace(line)
		fence := strings.HasPrefix(text, "```")
		indented = strings.HasPrefix(line, "    ") && (blank || indented)
		switch {
		case fence:
			fenced = !fenced
		case !fenced && !indented && text != "" && !strings.HasPrefix(text, "|") &&
			!strings.HasPrefix(text, "#") && !strings.HasPrefix(text, "!["):
			limits[i] = commentColumns
		}
		blank = text == ""
	}
	return limits
}

// TestWideProse: each kind of comment and of prose is found, and each exception applies.
func TestWideProse(t *testing.T) {
	wide, wider := strings.Repeat("word ", 21), strings.Repeat("word ", 25)
	c, python := notationOf("f.c", ""), notationOf("f.py", "")
	shell, markdown := notationOf("f.sh", ""), notationOf("f.md", "")
	for name, test := range map[string]struct {
		n    notation
		text string
		want int
	}{
		"a comment":                     {c, "// " + wide, 1},
		"a narrow one":                  {c, "// " + wide[:90], 0},
		"a block":                       {c, "/* " + wide + "\n" + wide + "*/\n" + wide, 2},
		"a block of one line":           {c, "/* " + wide + "*/\n" + wide, 1},
		"code":                          {c, wider, 0},
		"a comment behind code":         {c, "x; // " + wide, 0},
		"a long one behind code":        {c, "x; // " + wider, 1},
		"a mark in a string":            {c, "f(\"// " + wider + "\")", 0},
		"a mark in an address":          {c, "f(http://" + wider + ")", 0},
		"a table":                       {c, "//\t" + wider, 0},
		"an address":                    {c, "// see https://" + strings.Repeat("x", 100), 0},
		"a docstring":                   {python, "def f():\n  \"\"\"" + wide + "\n  " + wide + "\"\"\"\n  " + wide, 2},
		"a string":                      {python, "x = \"\"\"# " + wider + "\"\"\"", 0},
		"a script's comment":            {shell, "\t# " + wide, 1},
		"a script's comment after code": {shell, "x # " + wider, 1},
		"an interpreter":                {shell, "#!/bin/" + wide, 0},
		"a number of arguments":         {shell, "test $# " + wider, 0},
		"a target's help":               {shell, "up: ## " + wider, 0},
		"prose":                         {markdown, wide, 1},
		"an item":                       {markdown, "- a\n    " + wide, 1},
		"an item's second line":         {markdown, "- a\n  " + wide, 1},
		"a row":                         {markdown, "| " + wide, 0},
		"a heading":                     {markdown, "## " + wide, 0},
		"a picture":                     {markdown, "![" + wide + "](x.svg)", 0},
		"fenced code":                   {markdown, "```\n" + wide + "\n```\n" + wide, 1},
		"indented code":                 {markdown, "a\n\n    x\n    " + wide, 0},
	} {
		if found := wideProse("f", test.text, test.n); len(found) != test.want {
			t.Errorf("%s: %v, want %d", name, found, test.want)
		}
	}
}
