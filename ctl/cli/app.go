// Package cli has the shared parts of the commands of cgn-ctl: the root, checks of arguments, and
// output of results and errors.
package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// App is passed to each command: its output, the format, and the environment.
type App struct {
	Out, Err io.Writer
	Output   string // table or json, or the command's FurtherOutput
	Getenv   func(name string) string
}

// FurtherOutput is the annotation of a command with a format of its own besides table and json.
const FurtherOutput = "further output"

func (a *App) check(c *cobra.Command) error {
	further := c.Annotations[FurtherOutput]
	switch {
	case a.Output == "table", a.Output == "json", further != "" && a.Output == further:
		return nil
	case further != "":
		return fmt.Errorf("--output %q: must be table, json or %s", a.Output, further)
	}
	return fmt.Errorf("--output %q: must be table or json", a.Output)
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
