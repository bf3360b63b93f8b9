package health

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/internal/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// subject is a node without requests. subject records its breaker's states.
type subject struct{ moved []string }

func (s *subject) Moved(_, to State, why string)           { s.moved = append(s.moved, to.String()+": "+why) }
func (s *subject) InFlight() int32                         { return 0 }
func (s *subject) Model() (string, bool)                   { return "", false }
func (s *subject) Renewed()                                {}
func (s *subject) Answers(context.Context) error           { return nil }
func (s *subject) Checked(context.Context, bool, bool)     {}
func (s *subject) Sample(context.Context)                  {}
func (s *subject) Pause(limit time.Duration) time.Duration { return limit }

// testNode is the health of a node without checks.
func testNode(s State) *Node {
	n := &Node{}
	checks := NewChecks(Options{Logger: slog.New(slog.DiscardHandler)})
	pool := relay.NewPool(relay.Target{Addr: "127.0.0.1:1"}, relay.PoolOptions{})
	n.Init(checks, Who{ID: "n", Pool: pool, Subject: &subject{}}, s)
	return n
}

func TestUnanswered(t *testing.T) {
	n := testNode(Healthy)
	began := time.Now()
	if n.checker.note(nil); n.Unanswered(began.Add(time.Hour)) != 0 {
		t.Error("its check was answered")
	}
	n.checker.note(errors.New("refused"))
	n.checker.note(errors.New("refused"))
	if d := n.Unanswered(began.Add(time.Hour)); d > time.Hour || d < 59*time.Minute {
		t.Errorf("after an hour: %v", d)
	}
	if n.checker.note(nil); n.Unanswered(began.Add(time.Hour)) != 0 {
		t.Error("it answers again")
	}
}

// TestToldTooMuch checks that events are counted when they find the queue full, and that Tell does
// not wait.
func TestToldTooMuch(t *testing.T) {
	w := NewWatch(nil, nil)
	for range toldQueue + 5 {
		w.Tell(peerevents.Event{Kind: peerevents.Reset})
	}
	if w.Untold() != 5 {
		t.Errorf("%d", w.Untold())
	}
}

func TestRequestsAllocateNothing(t *testing.T) {
	n, now := testNode(Healthy), time.Now()
	for what, fn := range map[string]func(){
		"Eligible":     func() { n.Eligible(now) },
		"Admit":        func() { n.Admit() },
		"Report":       func() { n.Report(OK) },
		"NoteProgress": func() { n.NoteProgress() },
		"Suspect":      func() { n.Suspect() },
		"FailedLately": func() { n.FailedLately(now) },
	} {
		if allocs := testing.AllocsPerRun(200, fn); allocs != 0 {
			t.Errorf("%s: %v allocations", what, allocs)
		}
	}
}
