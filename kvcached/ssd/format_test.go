package ssd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mark writes a version into the directory's FORMAT.
func mark(t *testing.T, o Options, version int) {
	t.Helper()
	text := append(fmt.Appendf(nil, "cgn-kvcached ssd\nversion %d\nkey none\n", version), make([]byte, page)...)[:page]
	if err := os.WriteFile(filepath.Join(o.Dir, formatFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFormat: a directory of an older version is marked with this version and keeps its blocks. A
// directory with a newer version, or without one, is refused.
func TestFormat(t *testing.T) {
	o := small(t.TempDir())
	tier := open(t, o)
	write(t, tier, 1, 1, 5000, true)
	mustClose(t, tier)
	for _, v := range []int{0, formatVersion + 1} {
		mark(t, o, v)
		if _, err := Open(ctx, o); !errors.Is(err, ErrFormat) ||
			!strings.Contains(err.Error(), fmt.Sprintf("version %d", v)) {
			t.Error(v, err)
		}
	}
	mark(t, o, 1)
	tier = open(t, o)
	holds(t, tier, 1, 1, 5000)
	mustClose(t, tier)
	if v, _, err := readFormat(&Options{Dir: o.Dir, fs: osFS{}}); v != formatVersion || err != nil {
		t.Error(v, err)
	}
}
