package leg

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/sim/engine"
)

// pair returns a dispatcher over a simulated engine for prompts and one for answers.
func pair(t *testing.T, by engine.Connector) *Dispatcher {
	t.Helper()
	d, _ := pairOf(t, by)
	return d
}

// pairOf is pair that returns the engines too, that for prompts first.
func pairOf(t *testing.T, by engine.Connector) (d *Dispatcher, engines [2]*engine.Engine) {
	t.Helper()
	var all []fleet.Backend
	for i, role := range []engine.Role{engine.RolePrefill, engine.RoleDecode} {
		e, err := engine.New(engine.Config{Connector: by, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		engines[i] = e
		b := fleet.Backend{URL: e.URL(), ID: string(role), Model: "sim", Role: string(role), Connector: string(by)}
		if role == engine.RolePrefill && (by == engine.ConnectorMooncake || by == engine.ConnectorSGLang) {
			b.Bootstrap = e.SideChannel()
		}
		all = append(all, b)
	}
	d = still(t, Options{
		MaxNodes: 2, Limits: Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute},
		Disagg: Disagg{ColocateBelow: 20},
	}, all...)
	p := policy.Default()
	p.Mode = policy.Score
	d.policy.Store(p)
	return d, engines
}

// faulty is a connector that panics for P.
type faulty struct{ connector.Connector }

func (faulty) Prefill(*scan.Edits, *connector.Handover) { panic("oops") }

// TestPanicOfAPrefillLeg checks that a panic in a leg for P fails only the hand-over, and leaves
// nothing of it.
func TestPanicOfAPrefillLeg(t *testing.T) {
	for by, wants := range map[engine.Connector]string{
		engine.ConnectorNIXL: "", engine.ConnectorMooncake: "", engine.ConnectorSGLang: "no_prefill_node",
	} {
		d := pair(t, by)
		for _, pool := range d.current().models["sim"].pools {
			for _, n := range pool.members {
				if n.connector != nil {
					n.connector = faulty{connector.Of(string(by))}
				}
			}
		}
		const none = "cgn_router_panics_total 0\n"
		for again := 10; again > 0 && exports(d, none); again-- { // D may refuse before P's goroutine runs
			to := answer.Memory{Limit: 1 << 20}
			l := d.Leg(asked(t, d, chat(2000)), Question{}, &to)
			err := l.Do()
			if wants != "" && (err == nil || err.Code != wants) || wants == "" && (err != nil || to.Status != 200) {
				t.Errorf("%s: %v, %d: %s", by, err, to.Status, to.Body)
			}
			end := relay.Complete
			if err != nil {
				end = relay.UpstreamFailed
			}
			l.Finish(end)
		}
		if exports(d, none) {
			t.Errorf("%s: no panic is counted", by)
		}
		for _, pool := range d.current().models["sim"].pools {
			for _, n := range pool.members {
				if n.rank.InFlight() != 0 {
					t.Errorf("%s: a slot of %s is taken", by, n.node.ID)
				}
			}
		}
	}
}

// TestPanicBesideD checks that a panic on P's goroutine, outside P's leg, ends D's exchange, and
// nothing else.
func TestPanicBesideD(t *testing.T) {
	d := pair(t, engine.ConnectorMooncake)
	to := answer.Memory{Limit: 1 << 20}
	l := d.Leg(asked(t, d, chat(2000)), Question{}, &to)
	if _, err := l.first(); err != nil || l.way != Split {
		t.Fatal(l.way, err)
	}
	a := l.spare()
	l.prefillFirst(a)
	l.arm(a)
	h := l.hand
	h.drop()
	h.prefill = new(Leg) // without a request, so that anything but its attempts panics
	h.prefillBeside()
	if h.computed(200) || h.way != Broken || !a.abort.Canceled() {
		t.Errorf("%v, and D goes on: %v", h.way, !a.abort.Canceled())
	}
	if v := l.blame(relay.ErrCanceled); v != unpaired || !h.callOff() {
		t.Errorf("D's exchange ended in %v", v)
	}
	if !exports(d, "cgn_router_panics_total 1\n") {
		t.Error("no panic is counted")
	}
	l.Finish(relay.UpstreamFailed)
	for _, pool := range d.current().models["sim"].pools {
		for _, n := range pool.members {
			if n.rank.InFlight() != 0 {
				t.Errorf("a slot of %s is taken", n.node.ID)
			}
		}
	}
}

// TestLegsShareAnIndex checks that the edits of both legs find the body indexed. Otherwise the race
// detector sees both of them index it.
func TestLegsShareAnIndex(t *testing.T) {
	d := pair(t, engine.ConnectorMooncake)
	for range 5 {
		to := answer.Memory{Limit: 1 << 20}
		r := asked(t, d, chat(2000))
		body := r.Body()
		l := d.Leg(r, Question{}, &to)
		at, err := l.first()
		if err != nil {
			t.Fatal(err)
		}
		if l.way != Split {
			t.Fatal(l.way)
		}
		if err := l.run(at); err != nil || to.Status != 200 {
			t.Errorf("%v, %d: %s", err, to.Status, body)
		}
		l.Finish(relay.Complete)
	}
}
