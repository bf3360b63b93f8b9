package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table lines up rows of cells for people.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table { return &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

func (t *table) row(cells ...any) {
	words := make([]string, len(cells))
	for i, c := range cells {
		words[i] = fmt.Sprint(c)
	}
	fmt.Fprintln(t.w, strings.Join(words, "\t"))
}

// line writes text that takes no part in the columns.
func (t *table) line(text string) { fmt.Fprintln(t.w, text) }
