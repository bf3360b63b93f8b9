package architecture

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// What CONTRIBUTING.md says of lines, a tab counted as four columns.
const (
	commentColumns = 100
	codeColumns    = 120
	tab            = 4
)

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
}

// TestLinesFit holds every line of Go. A row of a table may be wider, in code and in a comment; so
// may directives, struct tags, raw strings, and lines that one word takes most of.
func TestLinesFit(t *testing.T) {
	seen := 0
	goFiles(t, func(at, rel string) error {
		text, err := os.ReadFile(at)
		if err != nil || strings.HasSuffix(rel, ".pb.go") {
			return err
		}
		seen++
		lines := bufio.NewScanner(bytes.NewReader(text))
		inRaw := false
		for n := 1; lines.Scan(); n++ {
			line := lines.Text()
			raw := inRaw || strings.Contains(line, "`")
			inRaw = inRaw != (strings.Count(line, "`")%2 == 1)
			code, comment, _ := strings.Cut(line, "//")
			whole := strings.TrimSpace(code) == "" && comment != "" && !raw
			if whole && (strings.HasPrefix(comment, "\t") || strings.HasPrefix(comment, "go:")) {
				continue
			}
			switch {
			case whole && columns(line) > commentColumns:
				t.Errorf("%s:%d: a comment of %d columns, at most %d", rel, n, columns(line), commentColumns)
			case !whole && !raw && columns(line) > codeColumns && !row(line) && !unbroken(line):
				t.Errorf("%s:%d: %d columns, at most %d", rel, n, columns(line), codeColumns)
			}
		}
		return lines.Err()
	})
	if seen == 0 {
		t.Error("no file was looked at")
	}
}

// row tells whether the line is a whole element of a table: {...}, or key: {...},
func row(line string) bool {
	line = strings.TrimSpace(line)
	key, value, keyed := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	return strings.HasSuffix(line, "},") && (line[0] == '{' ||
		keyed && strings.HasPrefix(value, "{") && !strings.Contains(key, "("))
}

// unbroken tells whether one word of the line takes most of it.
func unbroken(line string) bool {
	return slices.ContainsFunc(strings.Fields(line), func(word string) bool {
		return utf8.RuneCountInString(word) > codeColumns/2
	})
}
