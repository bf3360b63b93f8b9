package screen

import (
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, c := range []struct{ is, want string }{
		{cut("abcd", 3), "ab…"}, {cut("äbc", 3), "äbc"}, {cut("ab", 1), "…"}, {cut("ab", 0), ""},
		{printable("a\x1b[2Jb\nc\x9bd\u202e"), "a·[2Jb·c\ufffdd·"},
		{strings.Join(fold([]string{"one", "two", "three"}, 9, 5), "|"), "one; two;|three"},
		{strings.Join(fold([]string{"one", "two", "three"}, 9, 1), "|"), "one; two…"},
	} {
		if c.is != c.want {
			t.Errorf("%q, not %q", c.is, c.want)
		}
	}
}
