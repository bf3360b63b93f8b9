package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// app is what all commands share: where they write, and how.
type app struct {
	out, err io.Writer
	output   string // table or json
}

func (a *app) check() error {
	if a.output != "table" && a.output != "json" {
		return fmt.Errorf("--output %q: must be table or json", a.output)
	}
	return nil
}

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
