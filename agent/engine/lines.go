package engine

import (
	"bytes"
	"log/slog"
)

// maxLine bounds one line of engine output in the log, in bytes.
const maxLine = 4096

// lineLog writes each line it is given to the log. A line longer than maxLine
// is cut there and the rest of it dropped.
type lineLog struct {
	log     *slog.Logger
	line    []byte // the unfinished line, at most maxLine bytes
	cutting bool   // the rest of the present line is dropped
}

// Write never fails: a process must not die of its log.
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

// flush writes the line so far, if it holds anything.
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
