package router

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// TestProblemsAreLoggedOnce checks that a problem is logged at the second look, once for each
// subject and kind, though it goes and comes back. The memory for logged problems is bounded.
func TestProblemsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	l := logged{message: "m"}
	now := time.Now()
	look := func(problems ...fleet.Problem) int {
		out.Reset()
		now = now.Add(problemsEvery)
		l.look(now, func() []fleet.Problem { return problems }, log)
		return strings.Count(out.String(), "level=WARN")
	}
	a, b := fleet.Problem{Subject: "a", Reason: "no m: 1"}, fleet.Problem{Subject: "b", Reason: "no m"}
	again := fleet.Problem{Subject: "a", Reason: "no m: 2"}
	for i, of := range []struct {
		problems []fleet.Problem
		want     int
	}{
		{nil, 0}, {[]fleet.Problem{a, b}, 0}, {[]fleet.Problem{a}, 1}, {[]fleet.Problem{a}, 0}, {nil, 0},
		{[]fleet.Problem{again}, 0}, {[]fleet.Problem{again}, 0}, {[]fleet.Problem{b}, 0}, {[]fleet.Problem{b}, 1},
		{[]fleet.Problem{{Subject: "b", Reason: "no n"}}, 0}, {[]fleet.Problem{{Subject: "b", Reason: "no n"}}, 1},
	} {
		if got := look(of.problems...); got != of.want {
			t.Errorf("look %d: %d lines, want %d", i, got, of.want)
		}
	}
	l.look(now, func() []fleet.Problem { t.Error("looked at once again"); return nil }, log)
	stays := fleet.Problem{Subject: "stays"}
	look(stays)
	for n := range 5 {
		more := []fleet.Problem{stays}
		for i := range problemsMost/2 + 1 {
			more = append(more, fleet.Problem{Subject: fmt.Sprint(n, "/", i)})
		}
		look(more...)
		look(more...)
		if strings.Contains(out.String(), "of=stays") || len(l.told) > problemsMost {
			t.Errorf("round %d: %d are remembered", n, len(l.told))
		}
	}
	many := make([]fleet.Problem, 2*problemsMost)
	for i := range many {
		many[i].Subject = fmt.Sprint("many ", i)
	}
	look(many...)
	if first, second := look(many...), look(many...); first != problemsMost || second != 0 {
		t.Errorf("%d lines, then %d", first, second)
	}
}
