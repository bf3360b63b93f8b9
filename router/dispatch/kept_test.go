package dispatch

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/scan"
)

// TestKeptAnswerIsNoSignOfAnotherNode: what arrives of an answer that was kept while another node was asked comes from
// the node that gave it.
func TestKeptAnswerIsNoSignOfAnotherNode(t *testing.T) {
	d := start(t, 2)
	j := d.Job()
	j.API, j.Method, j.Path, j.Body, j.Received = scan.Chat, "POST", "/v1/chat/completions", chat(100), time.Now()
	if err := scan.Scan(j.API, j.Body, &j.Scan); err != nil {
		t.Fatal(err)
	}
	if err := d.admit(j); err != nil {
		t.Fatal(err)
	}
	d.match(j)
	for at, fault := range []string{"status=500", "reset"} {
		j.Header = append(j.Header[:0], "Content-Type: application/json\r\nx-sim-fault: "+fault+"\r\n"...)
		j.model.nodes[at].AcquireAlways()
		if v, want := d.try(j, at), []verdict{failed500, broken}[at]; v != want {
			t.Fatalf("%s is %v, want %v", fault, v, want)
		}
	}
	last := j.model.nodes[1]
	relayed := false
	j.Reply = func(ex *relay.Exchange) error {
		relayed = true
		before := last.pulse.At()
		j.Piece([]byte("it goes on"), false)
		if last.pulse.At() != before {
			t.Error("the node that was asked last is taken for alive")
		}
		ex.Close()
		return nil
	}
	if j.TTFT != 0 {
		t.Errorf("first sign of an answer after %v, but none was passed on", j.TTFT)
	}
	if err := d.fallBack(j); err != nil || !relayed || j.NodeID() != j.model.nodes[0].ID {
		t.Errorf("the kept answer is not passed on: %v", err)
	}
	d.Finish(j, relay.Complete)
	for _, n := range d.current().snap.Nodes {
		if n.InFlight() != 0 {
			t.Errorf("%d in flight on %s", n.InFlight(), n.ID)
		}
	}
}
