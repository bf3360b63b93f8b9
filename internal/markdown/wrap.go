// Package markdown breaks the lines of Markdown that programs write and people read as text.
package markdown

import (
	"strings"
	"unicode/utf8"
)

const columns = 100 // of a line of prose

// Wrap breaks the paragraphs and list items of a text at 100 columns. Tables, headings, code and
// images keep their lines.
func Wrap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) <= columns ||
			strings.ContainsRune("|#!< ", rune(line[0])) {
			b.WriteString(line)
			continue
		}
		wrapLine(&b, line)
	}
	return b.String()
}

// wrapLine breaks one line between words. A list item goes on below its first word.
func wrapLine(b *strings.Builder, line string) {
	indent := ""
	if strings.HasPrefix(line, "- ") {
		indent = "  "
	}
	column := 0
	for i, word := range strings.Fields(line) {
		width := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+width > columns:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += width
	}
	b.WriteByte('\n')
}
