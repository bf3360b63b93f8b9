package router

import (
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// These bound the log lines about problems: the time between two looks, which is also how long a
// problem lasts before it is logged, and the problems that are remembered.
const (
	problemsEvery = 5 * time.Second
	problemsMost  = 8192
)

// logged are the problems that the log has. One goroutine uses them.
type logged struct {
	message string // of the lines
	looked  time.Time
	last    map[string]bool // problems at the last look, by subject and kind
	told    map[string]bool // logged ones
}

// look logs problems that have lasted since the last look, each once, also if it goes and comes
// back. Beyond problemsMost, look forgets those that have gone, and logs no further ones.
func (l *logged) look(now time.Time, problems func() []fleet.Problem, log *slog.Logger) {
	if now.Sub(l.looked) < problemsEvery {
		return
	}
	last := l.last
	l.looked, l.last = now, map[string]bool{}
	if l.told == nil {
		l.told = map[string]bool{}
	}
	var fresh []fleet.Problem
	for _, p := range problems() {
		key := keyOf(&p)
		if l.last[key] = true; last[key] && !l.told[key] {
			fresh = append(fresh, p)
		}
	}
	if len(l.told)+len(fresh) > problemsMost {
		maps.DeleteFunc(l.told, func(key string, _ bool) bool { return !l.last[key] })
	}
	for _, p := range fresh[:min(len(fresh), problemsMost-len(l.told))] {
		l.told[keyOf(&p)] = true
		log.Warn(l.message, "of", p.Subject, "why", p.Reason)
	}
}

// keyOf returns a problem's subject and kind. What follows the colon changes with the fleet.
func keyOf(p *fleet.Problem) string {
	kind, _, _ := strings.Cut(p.Reason, ":")
	return p.Subject + " " + kind
}
