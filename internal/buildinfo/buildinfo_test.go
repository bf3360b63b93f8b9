package buildinfo

import (
	"strings"
	"testing"
)

func TestStampWins(t *testing.T) {
	t.Cleanup(func() { version, commit = "", "" })
	version, commit = "v1.2.3", "0123abcd"
	if got := String(); !strings.HasPrefix(got, "v1.2.3 (commit 0123abcd, go") {
		t.Errorf("got %q", got)
	}
}

func TestFallback(t *testing.T) {
	if Version() == "" || Commit() == "" {
		t.Errorf("version %q, commit %q: must never be empty", Version(), Commit())
	}
}
