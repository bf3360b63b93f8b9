// Package cli has the shared parts of the commands of cgn-ctl: the root, checks of arguments, and
// output of results and errors.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
)

// App is passed to each command: its output, the format, and the environment.
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

// Show writes v as JSON, or for people the table that fill fills.
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
