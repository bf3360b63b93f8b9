package leg

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/request"
)

// TestKeptAnswerIsNoSignOfAnotherNode checks that bytes of a kept answer count for the node that
// sent them, while another node is being asked.
func TestKeptAnswerIsNoSignOfAnotherNode(t *testing.T) {
	d := start(t, 2)
	var l *Leg
	relayed := false
	r := asked(t, d, chat(100))
	l = d.Leg(r, Question{}, place(func(ex *relay.Exchange) error {
		relayed = true
		last := l.pool.members[1]
		before := last.node.pulse.At()
		l.Piece([]byte("it goes on"), false)
		if last.node.pulse.At() != before {
			t.Error("the node that was asked last is taken for alive")
		}
		ex.Close()
		return nil
	}))
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.drop(l.spare())
	for at, fault := range []string{"status=500", "reset"} {
		r.Header = append(r.Header[:0], "Content-Type: application/json\r\nx-sim-fault: "+fault+"\r\n"...)
		l.pool.members[at].rank.AcquireAlways()
		l.spare().member = l.pool.members[at]
		if v, want := l.try(), []verdict{failed500, broken}[at]; v != want {
			t.Fatalf("%s is %v, want %v", fault, v, want)
		}
	}
	if l.TTFT != 0 {
		t.Errorf("first sign of an answer after %v, but none was passed on", l.TTFT)
	}
	if err := l.fallBack(); err != nil || !relayed || l.NodeID() != l.pool.members[0].node.ID {
		t.Errorf("the kept answer is not passed on: %v", err)
	}
	l.Finish(relay.Complete)
	for _, n := range d.current().snap.Nodes {
		if n.InFlight() != 0 {
			t.Errorf("%d in flight on %s", n.InFlight(), n.ID)
		}
	}
}

// TestCrowdedNodeIsNotCharged keeps the answer of an overloaded node. The answer is released unused
// and counts against no node when the client leaves before another node answers.
func TestCrowdedNodeIsNotCharged(t *testing.T) {
	d := start(t, 1)
	r := asked(t, d, chat(100))
	l := d.Leg(r, Question{}, place(func(*relay.Exchange) error { return nil }))
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	r.Header = append(r.Header[:0], "Content-Type: application/json\r\nx-sim-fault: status=503\r\n"...)
	if v := l.try(); v != overloaded {
		t.Fatalf("it is %v", v)
	}
	node := l.pool.members[at]
	l.Finish(relay.UpstreamFailed)
	if node.rank.InFlight() != 0 {
		t.Errorf("%d in flight", node.rank.InFlight())
	}
	if exports(d, `kind="client_reset"`) || !exports(d, `cgn_router_ttft_seconds_count{model="sim"} 0`) {
		t.Error("the node is charged with an answer that was not asked for")
	}
}

// leaver is a log handler that ends life, as a departure of the client does, once the given number
// of failures is logged.
type leaver struct {
	slog.Handler
	life     *request.Life
	failures int
}

func (h *leaver) Handle(ctx context.Context, r slog.Record) error {
	if h.failures--; h.failures == 0 {
		h.life.Cancel()
	}
	return h.Handler.Handle(ctx, r)
}

// TestLeavingEndsTheBreath checks that a leg ends without a third attempt if its client leaves
// after the connections to two nodes have broken.
func TestLeavingEndsTheBreath(t *testing.T) {
	d := start(t, 3)
	r := asked(t, d, chat(100))
	r.Header = append(r.Header[:0], "Content-Type: application/json\r\nx-sim-fault: reset\r\n"...)
	d.log = slog.New(&leaver{slog.NewTextHandler(io.Discard, nil), &r.Life, 2})
	l := d.Leg(r, Question{}, nil)
	if err, want := l.Do(), Ended(r); r.Life.Ended() != request.Left || err.Status != want.Status || l.Attempts != 2 {
		t.Errorf("%d attempts, then %v", l.Attempts, err)
	}
	if retries := `cgn_router_retries_total{reason="reset"} 1`; !exports(d, retries) {
		t.Errorf("not %s", retries)
	}
	l.Finish(relay.UpstreamFailed)
}
