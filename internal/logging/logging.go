// Package logging makes a daemon's logger.
package logging

import (
	"io"
	"log/slog"
)

// New returns a logger that writes records of at least level (debug, info, warn or error) to w.
// format is json or text. Durations are written like 1.5s in both formats. level and format must be
// valid.
func New(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level))
	o := &slog.HandlerOptions{Level: least}
	if format == "json" {
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // JSON would have a number of nanoseconds
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
