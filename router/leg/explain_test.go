package leg

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/sim/engine"
)

// explains checks that an explanation of r has the node and the error of the pick that follows it,
// and the given node as its winner.
func explains(t *testing.T, d *Dispatcher, r *request.Request, q Question, winner string) {
	t.Helper()
	e, err := d.Explain(r, q)
	if err != nil {
		t.Fatal(err)
	}
	l := d.Leg(r, q, nil)
	defer l.giveBack()
	if err := l.resolve(); err != nil {
		t.Fatal(err)
	}
	l.look()
	l.identify()
	at, refused := l.choose(time.Now())
	node, reason := "", ExplainedError{}
	if refused == nil {
		node = l.pool.members[at].node.ID
	} else {
		reason = ExplainedError{refused.Status, refused.Code, refused.Message}
	}
	if e.Winner != winner || node != winner {
		t.Errorf("explained %q, picked %q, and not %q", e.Winner, node, winner)
	}
	if (e.Error == nil) != (refused == nil) || e.Error != nil && *e.Error != reason {
		t.Errorf("explained %+v, refused %+v", e.Error, reason)
	}
}

// TestAnExplanationIsThePick checks each way to a node that is not the policy's first choice.
func TestAnExplanationIsThePick(t *testing.T) {
	t.Run("last resort", func(t *testing.T) {
		d := still(t, Options{}, twoNodes()[:1]...)
		n := d.current().snap.Nodes[0]
		for range 100 {
			n.Health.Report(health.ServerError)
		}
		if ok, _ := n.Eligible(time.Now()); ok {
			t.Fatal("the node is in service")
		}
		explains(t, d, asked(t, d, chat(100)), Question{}, "a")
	})
	t.Run("refused", func(t *testing.T) {
		d := still(t, Options{}, twoNodes()...)
		d.current().snap.Nodes[0].Health.SetAside("a test")
		explains(t, d, asked(t, d, chat(100)), pinnedTo("a"), "")
	})
	t.Run("hard session", func(t *testing.T) {
		d := withSessions(t, 2, true)
		home := picked(t, d, ofSession(t, d, "s"), time.Now(), true)
		for range 40 {
			home.Acquire()
		}
		explains(t, d, ofSession(t, d, "s"), Question{}, home.ID)
	})
	t.Run("full of others' running requests", func(t *testing.T) {
		d := follow(t)
		e, err := engine.New(engine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		d.put("full", e.URL(), `"ready":true,"heartbeat_s":300,"max_concurrent":2,"in_flight":4,"queue_depth":0`)
		var n *fleet.Node
		waitFor(t, func() bool {
			n = d.fleet.Load().Node("full")
			return n != nil && n.Load().Others == 4
		})
		explains(t, d.Dispatcher, asked(t, d.Dispatcher, chat(100)), Question{}, "full")
	})
}

// TestPrefillNodesAreExplained checks that an explanation has a row for a prefill node of the
// model, and that a pin to the node is refused with the same reason.
func TestPrefillNodesAreExplained(t *testing.T) {
	for why, setUp := range map[string]func(*fleet.Options){
		"it is in the pool prefill of model sim, whose requests are answered by roles both and decode": func(o *fleet.Options) {
			o.Models = map[string]*cluster.Model{"sim": {Pools: map[cluster.Role][]string{"prefill": {"a"}}}}
		},
		"its role is prefill: it computes prompts for nodes of roles both and decode, and answers nothing": func(
			o *fleet.Options) {
			o.Backends[0].Role = "prefill"
		},
	} {
		index := prefix.NewIndex(prefix.Options{})
		t.Cleanup(index.Close)
		o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true, Backends: twoNodes()}
		o.Backends[0].Connector = "nixl"
		setUp(&o)
		f, err := fleet.New(o)
		if err != nil {
			t.Fatal(err)
		}
		d := over(f, index, Options{})
		e, fail := d.Explain(asked(t, d, chat(100)), Question{})
		if fail != nil || len(e.Candidates) != 2 || e.Winner != "b" {
			t.Fatalf("%+v, %v", e, fail)
		}
		if row := e.Candidates[1]; row.Node != "a" || row.Eligible || row.Filter != "" || row.Reason != why {
			t.Errorf("the row is %+v, want %s", row, why)
		}
		e, fail = d.Explain(asked(t, d, chat(100)), pinnedTo("a"))
		if fail != nil || e.Error == nil || e.Error.Status != 404 || e.Error.Code != "node_not_found" ||
			!strings.HasSuffix(e.Error.Message, "does not answer requests for this model: "+why+"; these do: b") {
			t.Errorf("pinned: %+v, %+v, %v", e, e.Error, fail)
		}
		if e, fail = d.Explain(asked(t, d, chat(100)), Question{Work: Prefill}); fail != nil || len(e.Candidates) != 1 {
			t.Errorf("for prefill: %+v, %v", e, fail)
		}
	}
}
