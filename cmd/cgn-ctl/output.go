package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// hinted is an error with a second line that says what to do.
type hinted struct {
	error
	hint string
}

func (h hinted) Hint() string  { return h.hint }
func (h hinted) Unwrap() error { return h.error }

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

// show writes v as JSON, or for people what fill puts into a table.
func (a *app) show(v any, fill func(t *table)) error {
	if a.output == "json" {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	t := newTable(a.out)
	fill(t)
	return t.w.Flush()
}

// dash stands for a value that is not known.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// number writes v with the given decimals, "-" if it is not known.
func number(v *float64, decimals int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, *v)
}
