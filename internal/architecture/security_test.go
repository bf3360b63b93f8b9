package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTestsExist checks that each test that docs/security.md names is there.
func TestNamedTestsExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(page), -1) {
		named[m[1]] = true
	}
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(t \*testing\.T\)`)
	goFiles(t, func(path, _ string) error {
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			delete(named, m[1])
		}
		return err
	})
	for name := range named {
		t.Errorf("docs/security.md names %s, which no file has", name)
	}
}
