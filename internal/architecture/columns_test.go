package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits of lines in CONTRIBUTING.md. A tab counts as four columns.
const (
	commentColumns = 100
	codeColumns    = 120
	longToken      = 60 // a code line may exceed its limit by as much as its longest token exceeds this
	tab            = 4
)

// TestLinesFit checks every hand-written line of Go.
func TestLinesFit(t *testing.T) {
	seen := 0
	goFiles(t, func(at, rel string) error {
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		seen++
		wide, err := tooWide(rel, string(text))
		for _, line := range wide {
			t.Error(line)
		}
		return err
	})
	if seen < 100 {
		t.Errorf("only %d files were looked at", seen)
	}
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
}

// lineKind describes the contents of a line.
type lineKind struct {
	code        bool
	free        bool // the line's width is not limited
	comment     string
	longest     int       // columns of its longest token on this line
	padding     int       // spaces that align the values of a literal
	first, last token.Pos // the begin of its first and of its last token of code
}

// tooWide returns the lines of a file that are too wide. A line of code may be wider if it is a row
// of a table, lies in a raw string or has a struct tag. A comment line may be wider if it is a row
// of a table or a directive.
func tooWide(name, text string) (wide []string, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(parsed) {
		return nil, err
	}
	lines := strings.Split(text, "\n")
	kinds := kindsOf(files.File(parsed.FileStart), text, len(lines))
	freeRows(files, parsed, kinds)
	for i, line := range lines {
		k := &kinds[i]
		is := columns(line) - k.padding
		switch {
		case k.free:
		case k.code && is > codeColumns+max(0, k.longest-longToken):
			wide = append(wide, fmt.Sprintf("%s:%d: %d columns, at most %d", name, i+1, is, codeColumns))
		case !k.code && is > commentColumns && !strings.HasPrefix(k.comment, "//\t") &&
			!strings.HasPrefix(k.comment, "//go:"):
			wide = append(wide, fmt.Sprintf("%s:%d: a comment of %d columns, at most %d", name, i+1, is,
				commentColumns))
		}
	}
	return wide, nil
}

// kindsOf splits the lines of a file into tokens. Positions refer to file.
func kindsOf(file *token.File, text string, lines int) []lineKind {
	kinds := make([]lineKind, lines)
	again := token.NewFileSet().AddFile("", file.Base(), len(text)) // the same positions
	var s scanner.Scanner
	s.Init(again, []byte(text), nil, scanner.ScanComments)
	for {
		at, tok, literal := s.Scan()
		if tok == token.EOF {
			return kinds
		}
		first := file.PositionFor(at, false).Line - 1
		k := &kinds[first]
		switch {
		case tok == token.SEMICOLON && literal == "\n":
		case tok == token.COMMENT:
			k.comment = literal // the exceptions do not apply to a comment's further lines
		default:
			if k.code = true; !k.first.IsValid() {
				k.first = at
			}
			k.last = at
			head, _, _ := strings.Cut(literal, "\n")
			k.longest = max(k.longest, columns(head))
			for i := range strings.Count(literal, "\n") {
				kinds[first+i+1].code, kinds[first+i+1].free = true, true
			}
		}
	}
}

// freeRows exempts lines with struct tags, and lines that consist of elements {...}, or key: {...},
// of a composite literal. A function in a row may have one statement, because that is like a value.
func freeRows(files *token.FileSet, parsed *ast.File, kinds []lineKind) {
	line := func(at token.Pos) int { return files.PositionFor(at, false).Line - 1 }
	programs, begun, ended := map[int]bool{}, map[int]bool{}, map[int]bool{} // by line
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			if len(n.Body.List) > 1 {
				programs[line(n.Pos())] = true
			}
		case *ast.Field:
			if n.Tag != nil {
				kinds[line(n.Tag.Pos())].free = true
			}
		case *ast.CompositeLit:
			for _, element := range n.Elts {
				value := element
				if pair, keyed := element.(*ast.KeyValueExpr); keyed {
					value = pair.Value
					if at := line(pair.Colon); at == line(value.Pos()) {
						kinds[at].padding += int(value.Pos()-pair.Colon) - len(": ")
					}
				}
				at := line(element.Pos())
				if row, literal := value.(*ast.CompositeLit); !literal || row.Type != nil || at != line(element.End()) {
					continue
				}
				begun[at] = begun[at] || kinds[at].first == element.Pos()
				ended[at] = ended[at] || kinds[at].last == element.End() // the last token is the comma
			}
		}
		return true
	})
	for at := range begun {
		if begun[at] && ended[at] && !programs[at] {
			kinds[at].free = true
		}
	}
}

// TestTooWide: a line with quotes is not hidden from the check and hides no other line. Each
// exception applies.
func TestTooWide(t *testing.T) {
	wide, wider := strings.Repeat("x", 101), strings.Repeat("x", 121)
	call := "_ = f(" + strings.Repeat("x, ", 40) + "x)"
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"a comment":                {"// " + wide, 1},
		"a comment in a block":     {"/*\n" + wide + "\n*/", 1},
		"a comment behind code":    {"var x = 1 // " + wide[:90], 0},
		"a long one behind code":   {"var x = 1 // " + wider, 1},
		"a table":                  {"//\t" + wider, 0},
		"a directive":              {"//go:embed " + wider, 0},
		"a mark in a comment":      {"// `\n// " + wide, 1},
		"a mark in a rune":         {"var r = '`'\n\n// " + wide, 1},
		"a mark in a string":       {"func g() {\n\ts := \"`\"\n\t" + call + "\n}", 1},
		"a raw string in a call":   {"func g() {\n\t_ = f(`x`, " + call[6:] + "\n}", 1},
		"a raw string's middle":    {"var s = `\n" + wider + "\n" + wider + "`", 0},
		"a raw string's beginning": {"var s = `" + wider + "\n`", 0},
		"a long string":            {"var s = \"" + wider + "\"", 0},
		"two strings":              {"var s = \"" + wide + "\" + \"" + wide + "\"", 1},
		"a struct tag":             {"type s struct {\n\tx int `a:\"" + wide[:50] + "\" b:\"" + wide[:50] + "\"`\n}", 0},
		"a row":                    {"var s = []t{\n\t{" + call[6:len(call)-1] + "},\n}", 0},
		"rows":                     {"var s = []t{\n\t{1}, {" + call[6:len(call)-1] + "},\n}", 0},
		"a row with its key":       {"var s = map[k]t{\n\t\"a\": {" + call[6:len(call)-1] + "},\n}", 0},
		"a row that goes on":       {"var s = []t{\n\t{" + call[6:len(call)-1] + ",\n\t},\n}", 1},
		"a row with its type":      {"var s = []t{\n\tt{" + call[6:len(call)-1] + "},\n}", 1},
		"a row with a setter":      {"var s = []t{\n\t{func() { " + call + " }},\n}", 0},
		"a row with a program":     {"var s = []t{\n\t{func() { g(); " + call + " }},\n}", 1},
		"aligned values":           {"var s = m{\n\t`" + wide + "`: 1,\n\t`x`:" + strings.Repeat(" ", 105) + "1,\n}", 0},
	} {
		text := "package p\n\n" + c.text + "\n"
		if found, err := tooWide("p.go", text); len(found) != c.want || err != nil {
			t.Errorf("%s: %v, %v, want %d", name, found, err, c.want)
		}
	}
}
