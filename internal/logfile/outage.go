package logfile

import (
	"log/slog"
	"sync"
)

// Outage tells a program's log once that a file of lines cannot be written, and once that it can be
// again. Whoever makes the lines could otherwise fill the program's log. An Outage is safe for
// concurrent use.
type Outage struct {
	Log  *slog.Logger
	Name string // such as: access log

	mu      sync.Mutex
	failing bool
	lost    int // lines, since it fails
}

// Failed notes lines that were not written.
func (o *Outage) Failed(err error, lines int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost += lines; !o.failing {
		o.failing = true
		o.Log.Error(o.Name+" not written", "error", err, "lines", lines)
	}
}

// Worked notes that lines were written.
func (o *Outage) Worked() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failing {
		o.Log.Info(o.Name+" written again", "lines_lost", o.lost)
		o.failing, o.lost = false, 0
	}
}
