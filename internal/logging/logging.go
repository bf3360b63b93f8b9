// Package logging makes the log of a daemon.
package logging

import (
	"io"
	"log/slog"
)

// New writes to w what is at least level (debug, info, warn or error), as format says: json, else
// text; spans of time are written like 1.5s in both. The configuration has checked both.
func New(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level))
	o := &slog.HandlerOptions{Level: least}
	if format == "json" {
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // else it is a number of nanoseconds
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
