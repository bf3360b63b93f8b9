package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table aligns rows of cells for people.
type Table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

// Row writes a row of cells.
func (t *Table) Row(cells ...any) { t.Words(Words(cells...)) }

// Words writes a row of cells that are text.
func (t *Table) Words(cells []string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }

// Words formats cells.
func Words(cells ...any) []string {
	words := make([]string, len(cells))
	for i, c := range cells {
		words[i] = fmt.Sprint(c)
	}
	return words
}

// Line writes text outside of the columns.
func (t *Table) Line(text string) { fmt.Fprintln(t.w, text) }

// Count returns a number with the thing that is counted, whose plural ends with s.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
