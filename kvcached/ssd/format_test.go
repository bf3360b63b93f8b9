package ssd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mark makes the directory say that it is of a version.
func mark(t *testing.T, o Options, version int) {
	t.Helper()
	text := append(fmt.Appendf(nil, "cgn-kvcached ssd\nversion %d\nkey none\n", version), make([]byte, page)...)[:page]
	if err := os.WriteFile(filepath.Join(o.Dir, formatFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestUpgrade: a directory of an older version is brought to this one step by step, keeps its
// blocks, and is what it was if a step fails or is not known.
func TestUpgrade(t *testing.T) {
	was := maps.Clone(upgrades)
	t.Cleanup(func() { upgrades = was })
	o := small(t.TempDir())
	tier := open(t, o)
	write(t, tier, 1, 1, 5000, true)
	mustClose(t, tier)
	old := formatVersion - 3

	mark(t, o, old)
	delete(upgrades, old)
	if _, err := Open(ctx, o); !errors.Is(err, ErrFormat) ||
		!strings.Contains(err.Error(), fmt.Sprintf("version %d", old)) {
		t.Fatal("opened without a way there:", err)
	}
	var steps []int
	broken := errors.New("the disk is full")
	for v := old; v < formatVersion; v++ {
		upgrades[v] = func(of *Options) error {
			if of.Dir != o.Dir {
				t.Errorf("%s is upgraded", of.Dir)
			}
			if steps = append(steps, v); broken != nil && v == formatVersion-1 {
				return broken
			}
			return nil
		}
	}
	if _, err := Open(ctx, o); !errors.Is(err, broken) {
		t.Fatal("opened half upgraded:", err)
	}
	broken = nil
	for range 2 { // the second finds nothing to do
		tier = open(t, o)
		holds(t, tier, 1, 1, 5000)
		mustClose(t, tier)
	}
	if want := []int{old, old + 1, old + 2, old, old + 1, old + 2}; fmt.Sprint(steps) != fmt.Sprint(want) {
		t.Errorf("steps %v, not %v", steps, want)
	}
}
