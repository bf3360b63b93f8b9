// Package architecture checks the import graph against the table in ARCHITECTURE.md, and the sizes
// of files and functions against CONTRIBUTING.md.
package architecture

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/cognitora/dataplane/"
)

// rules parses the table: for each package, the packages that it may import.
func rules(t *testing.T) map[string][]string {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "## Who may import whom")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no section on imports")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	row := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|([^|]*)\\|$")
	rules := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		for _, folder := range names(m[1]) {
			rules[folder] = names(m[2])
		}
	}
	return rules
}

// names returns the packages in a cell of the table.
func names(cell string) []string { return strings.Fields(strings.ReplaceAll(cell, "`", "")) }

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// ruleFor returns the most specific row for pkg.
func ruleFor(rules map[string][]string, pkg string) (folder string, allowed []string) {
	for f, a := range rules {
		if within(pkg, f) && len(f) > len(folder) {
			folder, allowed = f, a
		}
	}
	return folder, allowed
}

// goFiles calls fn with every Go file, tests too: where it is from here, and from the root.
func goFiles(t *testing.T, fn func(path, rel string) error) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || path != root && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return fn(path, filepath.ToSlash(rel))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// imports calls fn with every package of this module that a non-test file imports.
func imports(t *testing.T, fn func(pkg, file, imported string)) {
	t.Helper()
	goFiles(t, func(at, rel string) error {
		if strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), at, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			if strings.HasPrefix(name, module) {
				fn(path.Dir(rel), rel, strings.TrimPrefix(name, module))
			}
		}
		return nil
	})
}

func TestImportsFollowTheTable(t *testing.T) {
	rules := rules(t)
	if len(rules) < 5 {
		t.Fatalf("only %d rows found", len(rules))
	}
	imports(t, func(pkg, file, imported string) {
		folder, allowed := ruleFor(rules, pkg)
		if folder == "" {
			t.Errorf("%s: ARCHITECTURE.md has no row for %s", file, pkg)
			return
		}
		for _, a := range allowed {
			if within(imported, a) {
				return
			}
		}
		t.Errorf("%s: %s may not import %s (row %q allows %v)", file, pkg, imported, folder, allowed)
	})
}

// TestEveryPermissionIsUsed: a row that allows more than its packages import says something else
// than the code.
func TestEveryPermissionIsUsed(t *testing.T) {
	rules := rules(t)
	used := map[string]bool{}
	imports(t, func(pkg, _, imported string) {
		folder, allowed := ruleFor(rules, pkg)
		for _, a := range allowed {
			if within(imported, a) {
				used[folder+" "+a] = true
			}
		}
	})
	for folder, allowed := range rules {
		for _, a := range allowed {
			if !used[folder+" "+a] {
				t.Errorf("the table lets %s import %s, which nothing there does: take it out", folder, a)
			}
		}
	}
}

func TestFoldersAreAtMostTwoDeep(t *testing.T) {
	imports(t, func(pkg, file, _ string) {
		if strings.Count(pkg, "/") > 2 {
			t.Errorf("%s lies more than two folders below the top", file)
		}
	})
}

func TestEveryRowNamesAFolder(t *testing.T) {
	for folder, allowed := range rules(t) {
		for _, f := range append([]string{folder}, allowed...) {
			if info, err := os.Stat(filepath.Join(root, f)); err != nil || !info.IsDir() {
				t.Errorf("the table names %s, which is not a folder", f)
			}
		}
	}
}
