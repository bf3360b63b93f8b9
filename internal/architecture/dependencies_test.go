package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDependenciesHaveReasons checks that CONTRIBUTING.md gives a reason for each module that
// go.mod requires directly, and for no other module.
func TestDependenciesHaveReasons(t *testing.T) {
	required, reasoned := directModules(t), modulesWithReason(t)
	if len(required) < 10 {
		t.Fatalf("go.mod requires only %v", required)
	}
	for _, m := range required {
		if !slices.Contains(reasoned, m) {
			t.Errorf("%s has no row in CONTRIBUTING.md under Dependencies", m)
		}
	}
	for i, m := range reasoned {
		if !slices.Contains(required, m) {
			t.Errorf("%s has a row in CONTRIBUTING.md, but go.mod does not require it directly", m)
		}
		if slices.Contains(reasoned[:i], m) {
			t.Errorf("%s has two rows in CONTRIBUTING.md", m)
		}
	}
}

// directModules returns the modules that go.mod requires and does not mark as indirect.
func directModules(t *testing.T) (modules []string) {
	requirement := regexp.MustCompile(`(?m)^(?:require )?\t?([^\s()]+\.[^\s()]+/\S+) v\S+( // indirect)?$`)
	for _, m := range requirement.FindAllStringSubmatch(document(t, "go.mod"), -1) {
		if m[2] == "" {
			modules = append(modules, m[1])
		}
	}
	return modules
}

// modulesWithReason returns the modules in the first column of the table of dependencies.
func modulesWithReason(t *testing.T) (modules []string) {
	_, section, ok := strings.Cut(document(t, "CONTRIBUTING.md"), "\n## Dependencies\n")
	if !ok {
		t.Fatal("CONTRIBUTING.md has no section on dependencies")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	row := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|[^|]*[a-z][^|]*\\|$")
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		modules = append(modules, names(strings.ReplaceAll(m[1], ",", " "))...)
	}
	return modules
}

// document returns the text of a file at the root.
func document(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
