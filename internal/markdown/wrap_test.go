package markdown

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestWrap: prose is broken at 100 columns, and a line of a table, a heading, an image or code is
// not.
func TestWrap(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("µs of CPU ", 15))
	wrapped := Wrap(words + "\n- " + words + "\nshort\n")
	if strings.Join(strings.Fields(wrapped), " ") != words+" - "+words+" short" {
		t.Errorf("words were lost: %q", wrapped)
	}
	for line := range strings.Lines(wrapped) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if !strings.Contains(wrapped, "\n  µs") && !strings.Contains(wrapped, "\n  of") &&
		!strings.Contains(wrapped, "\n  CPU") {
		t.Errorf("a list item does not go on below its first word: %q", wrapped)
	}
	for _, kept := range []string{"| " + words, "### " + words, "![" + words, "    " + words, "<!-- " + words} {
		if got := Wrap(kept + "\n"); got != kept+"\n" {
			t.Errorf("%q became %q", kept, got)
		}
	}
}
