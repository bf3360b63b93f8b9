package devices

import (
	"embed"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//go:embed testdata/*.tree
var trees embed.FS

// gone removes a path, and all below it, from a tree.
const gone = "\x00"

// tree builds a recorded tree below a folder, with changes, and returns the folder. A change maps
// PATH to its text, or to gone.
func tree(t *testing.T, name string, changes map[string]string) string {
	t.Helper()
	root := t.TempDir()
	b, err := trees.ReadFile("testdata/" + name + ".tree")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		path, rest, ok := strings.Cut(line, " ")
		if !ok || len(rest) == 0 {
			t.Fatalf("%s: %q", name, line)
		}
		plant(t, filepath.Join(root, path), rest)
	}
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		at := filepath.Join(root, path)
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
		if changes[path] != gone {
			plant(t, at, "= "+changes[path])
		}
	}
	return root
}

// plant makes a file, a link, or an unreadable path, which is a folder.
func plant(t *testing.T, at, what string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	text := strings.TrimPrefix(what[1:], " ")
	switch {
	case err != nil:
	case what[0] == '=':
		err = os.WriteFile(at, []byte(strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(text)+"\n"), 0o644)
	case what[0] == '!':
		err = os.Mkdir(at, 0o755)
	default:
		err = os.Symlink(strings.TrimPrefix(text, "> "), at)
	}
	if err != nil {
		t.Fatal(err)
	}
}
