// Package cli is what the commands of cgn-ctl share: the root, how arguments are checked, and how
// results and errors are written.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
)

// App is what a command is given: where it writes, how, and its environment.
type App struct {
	Out, Err io.Writer
	Output   string // table or json
	Getenv   func(name string) string
}

func (a *App) check() error {
	if a.Output != "table" && a.Output != "json" {
		return fmt.Errorf("--output %q: must be table or json", a.Output)
	}
	return nil
}

// Show writes v as JSON, or for people what fill puts into a table.
func (a *App) Show(v any, fill func(t *Table)) error {
	if a.Output == "json" {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	t := newTable(a.Out)
	fill(t)
	return t.w.Flush()
}
