package engine

import (
	"bytes"
	"log/slog"
)

// maxLine bounds one logged line of engine output, in bytes.
const maxLine = 4096

// lineLog logs each line that is written to it. lineLog cuts a longer line at maxLine and drops the
// rest.
type lineLog struct {
	log     *slog.Logger
	line    []byte // the unfinished line, at most maxLine bytes
	cutting bool   // true while the rest of a line is dropped
}

// Write never fails, so that the engine does not end because of its log.
func (l *lineLog) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		piece, rest, ended := bytes.Cut(p, []byte{'\n'})
		l.add(piece)
		if ended {
			l.flush()
		}
		p = rest
	}
	return n, nil
}

func (l *lineLog) add(piece []byte) {
	if room := maxLine - len(l.line); len(piece) > room {
		l.cutting, piece = true, piece[:room]
	}
	l.line = append(l.line, piece...)
}

// flush logs the unfinished line, unless it is empty.
func (l *lineLog) flush() {
	line := bytes.TrimRight(l.line, "\r \t")
	if len(line) > 0 {
		if l.cutting {
			l.log.Info("engine output", "line", string(line), "cut_at_bytes", maxLine)
		} else {
			l.log.Info("engine output", "line", string(line))
		}
	}
	l.line, l.cutting = l.line[:0], false
}
