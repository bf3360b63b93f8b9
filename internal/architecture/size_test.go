package architecture

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"testing"
)

// Limits in CONTRIBUTING.md for hand-written code, tests included: lines of a file, and lines of a
// function from its name to its last brace.
const (
	fileLines     = 600
	functionLines = 70
)

func TestFilesAndFunctionsAreShort(t *testing.T) {
	seen := 0
	goFiles(t, func(path, rel string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		seen++
		if n := bytes.Count(text, []byte("\n")); n >= fileLines {
			t.Errorf("%s has %d lines, and files stay under %d: split it by concept", rel, n, fileLines)
		}
		line := func(at token.Pos) int { return files.Position(at).Line }
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && line(fn.End())-line(fn.Pos())+1 >= functionLines {
				t.Errorf("%s:%d: %s has %d lines, and functions stay under %d: take it apart", rel, line(fn.Pos()),
					fn.Name.Name, line(fn.End())-line(fn.Pos())+1, functionLines)
			}
		}
		return nil
	})
	if seen < 100 {
		t.Errorf("only %d files were looked at", seen)
	}
}
