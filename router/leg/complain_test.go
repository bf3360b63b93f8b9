package leg

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
)

// TestFailuresWithoutALineAreTold checks that the first failure is logged at once. The later ones
// share a line, after a while or at the end.
func TestFailuresWithoutALineAreTold(t *testing.T) {
	d := start(t, 1)
	var log bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	lines := func(want int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != want {
			t.Fatalf("%d lines, want %d:\n%s", n, want, log.String())
		}
	}
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if err := l.resolve(); err != nil {
		t.Fatal(err)
	}
	m := l.pool.members[0]
	began := time.Now()
	for range 4 {
		l.complain(m, "reset", "test")
		d.complainOfAll(l.model, 500)
	}
	lines(2)
	d.complainOfRest(began.Add(complainEvery / 2))
	lines(2)
	now := time.Now().Add(complainEvery)
	d.complainOfRest(now)
	lines(4)
	if s := log.String(); !strings.Contains(s, `msg="earlier failures on node that no line has told of yet"`) ||
		strings.Count(s, "_since_last_line=3") != 2 {
		t.Errorf("%s", s)
	}
	d.complainOfRest(now.Add(2 * complainEvery))
	lines(4)

	m.node.complaints.held.Store(5)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m.node.complaints.next.Store(time.Now().Add(complainEvery / 2).UnixNano())
	if err := d.Run(ended); err != nil {
		t.Fatal(err)
	}
	lines(5)
}

// TestCauseOfABrokenAnswer checks that the cause is the failure that broke the answer, not the
// failure of an earlier attempt. A client's departure is not a cause.
func TestCauseOfABrokenAnswer(t *testing.T) {
	l := &Leg{Request: &request.Request{}, tries: tries{cause: "connect"}}
	if got := l.Cause(relay.UpstreamFailed); got != "connect" {
		t.Errorf("where no answer has begun: %q", got)
	}
	l.now = &attempt{member: &member{node: &nodeState{Node: &fleet.Node{ID: "n"}}}, taken: true}
	for o, want := range map[relay.Outcome]string{
		relay.Complete: "connect", relay.UpstreamFailed: "cut", relay.IdleTimeout: "idle",
	} {
		if got := l.Cause(o); got != want {
			t.Errorf("%v: %q", o, got)
		}
	}
	l.Request.Life.Cancel()
	if got := l.Cause(relay.UpstreamFailed); got != "connect" {
		t.Errorf("after the client left: %q", got)
	}
}
