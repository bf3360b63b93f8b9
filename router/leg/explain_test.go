package leg

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
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
