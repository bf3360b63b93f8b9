package leg

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/sim/engine"
)

// foreseen makes mode predicted the dispatcher's mode. A request that may be split always is.
func foreseen(d *Dispatcher) {
	d.o.Disagg.Always = true
	d.current().models["sim"].limits.FirstByte = time.Hour
	p := policy.Default()
	p.Mode = policy.Predicted
	d.policy.Store(p)
}

// slowed is foreseen for nodes whose answers have taught that 2000 tokens take 10 s.
func slowed(d *Dispatcher, work Work) {
	foreseen(d)
	for range 40 {
		for _, m := range d.current().models["sim"].pools[work].members {
			f := predict.First{Work: predict.Prompt(2000, 0), Step: 0.01}
			s := m.engine.Speed()
			s.Forecast(&f)
			m.engine.LearnFirst(&f, 10, time.Now())
		}
	}
}

// TestLatePrefillNodes checks that a P is not asked if answers have taught that it takes too long
// for its half of the client's deadline, and that other expectations do not count.
func TestLatePrefillNodes(t *testing.T) {
	body := chat(8 << 10) // some 2000 tokens
	for _, taught := range []bool{true, false} {
		d := divided(t, 2, 2)
		if foreseen(d); taught {
			slowed(d, Prefill)
		}
		for left, want := range map[time.Duration]Way{0: Split, time.Minute: Split, 15 * time.Second: Late, 1: Late} {
			if !taught {
				want = Split
			}
			r, l := request.New(), newLeg()
			if left > 0 {
				r.Deadline = time.Now().Add(left)
			}
			if w, err := pickBoth(d, r, l, body); w != want || err != nil {
				t.Errorf("taught %v, %v left: %v, %v", taught, left, w, err)
			}
		}
		r := asked(t, d, body)
		r.Deadline = time.Now().Add(15 * time.Second)
		e, err := d.Explain(r, Question{})
		if err != nil || e.Prefill == nil || taught != (e.Prefill.Result == "late") ||
			taught != strings.Contains(e.Prefill.Why, "half of the 1") {
			t.Errorf("explained: %+v, %v", e.Prefill, err)
		}
	}
}

// TestExcusesEnd checks that the clients' deadlines excuse a node until it has owed answers for
// long.
func TestExcusesEnd(t *testing.T) {
	d := divided(t, 1, 1)
	n := d.current().nodes[d.current().snap.Nodes[0]]
	began := time.Now()
	missedAt := func(after time.Duration) time.Duration {
		at := began.Add(after)
		return n.missed.since(&attempt{member: &member{node: n}, sent: at}, at.Add(time.Second))
	}
	for _, after := range []time.Duration{0, time.Second, 3 * time.Second} {
		if got := missedAt(after); got != after+time.Second || got >= hushed {
			t.Errorf("owes answers for %v after %v", got, after)
		}
	}
	if missedAt(4*time.Second) < hushed {
		t.Error("the node is excused although it has owed answers for 5 s")
	}
	n.pulse.Beat(began.Add(time.Minute))
	if got := missedAt(time.Hour); got != time.Second {
		t.Errorf("owes answers for %v, a sign of life ago", got)
	}
}

// TestALatePartnerCountsOnce checks that a P that proves too late after D has been picked is
// counted as late and as nothing else.
func TestALatePartnerCountsOnce(t *testing.T) {
	d := divided(t, 2, 2)
	slowed(d, Prefill)
	r := asked(t, d, chat(8<<10))
	r.Deadline = time.Now().Add(time.Minute)
	l := d.Leg(r, Question{}, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil || l.way != Split {
		t.Fatal(l.way, err)
	}
	r.Deadline = time.Now().Add(15 * time.Second)
	a := l.spare()
	if l.prefillFirst(a); l.way != Late || a.split || l.hand.prefill != nil {
		t.Errorf("%v, split %v", l.way, a.split)
	}
	for w := Undecided + 1; w < ways; w++ {
		n := 0
		if w == Late {
			n = 1
		}
		if line := fmt.Sprintf("cgn_router_handovers_total{result=%q} %d\n", w, n); !exports(d, line) {
			t.Errorf("no line %s", line)
		}
	}
}

// TestNothingLeft checks that neither node is asked once the client's deadline has passed, and that
// P is asked no second time after its half.
func TestNothingLeft(t *testing.T) {
	for _, by := range []engine.Connector{engine.ConnectorNIXL, engine.ConnectorMooncake, engine.ConnectorSGLang} {
		d := pair(t, by)
		r := asked(t, d, chat(4<<10))
		l := d.Leg(r, Question{}, new(answer.Memory))
		at, err := l.first()
		if err != nil || !l.spare().split {
			t.Fatal(err)
		}
		p := l.hand.prefill
		p.tries.until = time.Now().Add(time.Hour)
		if !p.mayGoOn() {
			t.Error("P may be asked again while its time lasts")
		}
		if p.tries.until = time.Now(); p.mayGoOn() {
			t.Error("P may be asked again after its time")
		}
		r.Deadline = time.Now()
		if err := l.run(at); err != ErrDeadline || l.Attempts != 0 || !l.hand.last.began.IsZero() {
			t.Errorf("%s: %v; P began at %v, %d attempts at D", by, err, l.hand.last.began, l.Attempts)
		}
		l.Finish(relay.UpstreamFailed)
		for _, n := range d.current().snap.Nodes {
			if n.InFlight() != 0 {
				t.Errorf("%s: %s has a request", by, n.ID)
			}
		}
	}
}

// TestFurtherLegsInTime checks that a further leg is not sent if it cannot make the client's
// deadline, and that a first leg is.
func TestFurtherLegsInTime(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(d *Dispatcher)
		left    time.Duration
		sent    bool
	}{
		"no time is left":          {func(*Dispatcher) {}, -1, false},
		"nothing is expected":      {func(*Dispatcher) {}, 5 * time.Second, true},
		"nothing has been learned": {foreseen, 5 * time.Second, true},
		"too slow":                 {func(d *Dispatcher) { slowed(d, Answer) }, 5 * time.Second, false},
		"fast enough":              {func(d *Dispatcher) { slowed(d, Answer) }, 30 * time.Second, true},
	} {
		var all []*engine.Engine
		d := startWith(t, 1, &all)
		c.prepare(d)
		for _, further := range []bool{true, false} {
			r := asked(t, d, chat(8<<10))
			r.Deadline = time.Now().Add(c.left)
			l := d.Leg(r, Question{Further: further}, &answer.Memory{Limit: 1 << 20})
			err := l.Do()
			if sent := l.Attempts > 0; sent != (c.sent || !further) || further && (err == ErrDeadline) == c.sent {
				t.Errorf("%s, further %v: sent %v, %v", name, further, sent, err)
			}
			l.Finish(relay.Complete)
		}
	}
}
