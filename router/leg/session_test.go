package leg

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

const sessionLifetime = 10 * time.Minute

// withSessions is a dispatcher over n nodes that remembers sessions.
func withSessions(t testing.TB, n int, hard bool) *Dispatcher {
	t.Helper()
	d := start(t, n)
	d.sessions, d.o.HardSessions = affinity.NewSessions(100, sessionLifetime), hard
	return d
}

// ofSession returns a client's request of a session. Each request has another prompt.
func ofSession(t testing.TB, d *Dispatcher, id string) *request.Request {
	t.Helper()
	r := asked(t, d, fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"%p"}]}`, t))
	r.Session = []byte(id)
	return r
}

// picked returns the node that a request gets at now. With answers the node begins an answer.
func picked(t testing.TB, d *Dispatcher, r *request.Request, now time.Time, answers bool) *fleet.Node {
	t.Helper()
	l := wanted(t, d, r)
	defer l.giveBack()
	if err := l.admit(); err != nil {
		t.Fatal(err)
	}
	d.where.Find(l.prompt, r, l.model.name, l.model.seed, l.pool.ranks)
	l.identify()
	at, err := l.choose(now)
	if err != nil {
		t.Fatal(err)
	}
	if a := l.spare(); answers {
		l.sessionAnswered(a, now)
	}
	return l.pool.members[at].node.Node
}

// sessionsOfEach returns the id of a session that the policy sends to each node.
func sessionsOfEach(t testing.TB, d *Dispatcher) map[*fleet.Node]string {
	t.Helper()
	ids := map[*fleet.Node]string{}
	for i := 0; len(ids) < len(d.current().snap.Nodes); i++ {
		if i == 1000 {
			t.Fatal("some node gets no session")
		}
		id := fmt.Sprint("session-", i)
		ids[picked(t, d, ofSession(t, d, id), time.Now(), false)] = id
	}
	return ids
}

// TestSessionsStayAtTheirNode checks that a session stays where it was answered, and not where its
// id alone would send it. Nothing else moves with it.
func TestSessionsStayAtTheirNode(t *testing.T) {
	for _, hard := range []bool{false, true} {
		d := withSessions(t, 4, hard)
		ids, now := sessionsOfEach(t, d), time.Now()
		nodes := d.current().snap.Nodes
		id, home := ids[nodes[0]], nodes[1]
		if d.sessions.Len(now) != 0 {
			t.Fatal("picks alone make sessions")
		}
		r := ofSession(t, d, id)
		r.Pin = home.ID // a client's own choice counts as the session's node, too
		picked(t, d, r, now, true)
		for range 5 {
			if got := picked(t, d, ofSession(t, d, id), now, true); got != home {
				t.Errorf("hard %v: at %s instead of %s", hard, got.ID, home.ID)
			}
		}
		for node, other := range ids {
			if got := picked(t, d, ofSession(t, d, other), now, false); other != id && got != node {
				t.Errorf("hard %v: another session is at %s instead of %s", hard, got.ID, node.ID)
			}
		}
		if got := picked(t, d, ofSession(t, d, id), now.Add(sessionLifetime), false); got != nodes[0] {
			t.Errorf("hard %v: after its lifetime at %s instead of %s", hard, got.ID, nodes[0].ID)
		}
	}
}

// TestSessionsMoveOnce checks that a session leaves a node that takes no requests, and does not
// move back.
func TestSessionsMoveOnce(t *testing.T) {
	for _, hard := range []bool{false, true} {
		d := withSessions(t, 3, hard)
		now := time.Now()
		home := picked(t, d, ofSession(t, d, "s"), now, true)
		next := home
		for try := 0; next == home; try++ { // on a machine that stalls a check brings the node back before the pick
			if try == 100 {
				t.Fatalf("hard %v: the node that was set aside is picked", hard)
			}
			home.Health.SetAside("the test")
			next = picked(t, d, ofSession(t, d, "s"), now, true)
		}
		waitFor(t, func() bool { ok, _ := home.Eligible(time.Now()); return ok })
		for range 5 {
			if got := picked(t, d, ofSession(t, d, "s"), time.Now(), true); got != next {
				t.Errorf("hard %v: moved back from %s to %s", hard, next.ID, got.ID)
			}
		}
	}
}

// TestHardBeatsLoad checks that load moves a soft session and not a hard one, in any mode.
func TestHardBeatsLoad(t *testing.T) {
	for _, hard := range []bool{false, true} {
		d := withSessions(t, 2, hard)
		now := time.Now()
		home := picked(t, d, ofSession(t, d, "s"), now, true)
		for range 40 {
			if !home.Acquire() {
				t.Fatal("full")
			}
		}
		for name := range map[string]policy.Mode{"score": policy.Score, "least_loaded": policy.LeastLoaded} {
			p := policy.Default()
			p.Mode, _ = policy.ParseMode(name)
			d.policy.Store(p)
			if got := picked(t, d, ofSession(t, d, "s"), now, false); (got == home) != hard {
				t.Errorf("%s, hard %v: at the loaded node: %v", name, hard, got == home)
			}
		}
		for range 40 {
			home.Release()
		}
	}
}

// TestAFullNodeKeepsNoSession checks that a session moves if its node has no room. A request is
// not refused while another node has room.
func TestAFullNodeKeepsNoSession(t *testing.T) {
	d := withSessions(t, 2, true)
	now := time.Now()
	home := picked(t, d, ofSession(t, d, "s"), now, true)
	r := ofSession(t, d, "s")
	l := wanted(t, d, r)
	defer l.giveBack()
	if err := l.admit(); err != nil {
		t.Fatal(err)
	}
	d.where.Find(l.prompt, r, l.model.name, l.model.seed, l.pool.ranks)
	l.identify()
	l.picks.policy = d.policy.Load()
	l.candidates(now)
	at := l.home(now) - 1
	if l.pool.members[l.picks.able[at]].node.Node != home {
		t.Fatal("the session is elsewhere")
	}
	if c := &l.picks.cands[at]; l.pick(now, nil) == at {
		c.MaxConcurrent, c.InFlight = 4, 4
	}
	if got := l.pick(now, nil); got < 0 || got == at {
		t.Errorf("picked %d, and the full node is %d", got, at)
	}
}

// TestWhichRequestsHaveASession checks the requests that count: those that leave their prompt in an
// engine's cache.
func TestWhichRequestsHaveASession(t *testing.T) {
	d := withSessions(t, 1, false)
	for api, want := range map[scan.API]bool{
		scan.Chat: true, scan.Completions: true, scan.Responses: true, scan.Messages: true,
		scan.CountTokens: false, scan.Embeddings: false, scan.Other: false,
	} {
		r := ofSession(t, d, api.String())
		r.API = api
		picked(t, d, r, time.Now(), true)
		if _, known := d.sessions.Node(d.sessions.Key("sim", r.Session), time.Now()); known != want {
			t.Errorf("%v: known %v", api, known)
		}
	}
	d.sessions = nil
	picked(t, d, ofSession(t, d, "s"), time.Now(), true)
	r := ofSession(t, d, "")
	d.sessions = affinity.NewSessions(1, sessionLifetime)
	if picked(t, d, r, time.Now(), true); d.sessions.Len(time.Now()) != 0 {
		t.Error("a request without a session has one")
	}
}

// TestAnswersMakeSessions sends requests to an engine, and checks the counters.
func TestAnswersMakeSessions(t *testing.T) {
	d := withSessions(t, 2, true)
	send := func(id string, status int) string {
		t.Helper()
		r := ofSession(t, d, id)
		if status != 200 {
			r.Header = append(r.Header, fmt.Sprintf("x-sim-fault: status=%d\r\n", status)...)
		}
		l := wanted(t, d, r)
		l.place = place(func(ex *relay.Exchange) error { ex.Close(); return nil })
		if err := l.Do(); err != nil {
			t.Fatal(err)
		}
		node := l.NodeID()
		l.Finish(relay.Complete)
		return node
	}
	if send("failed", 418); d.sessions.Len(time.Now()) != 0 {
		t.Error("an engine's refusal makes a session")
	}
	node := send("s", 200)
	for range 3 {
		if got := send("s", 200); got != node {
			t.Errorf("at %s instead of %s", got, node)
		}
	}
	for line, want := range map[string]bool{
		`cgn_router_session_answers_total{result="new"} 1`:   true,
		`cgn_router_session_answers_total{result="kept"} 3`:  true,
		`cgn_router_session_answers_total{result="moved"} 0`: true,
	} {
		if exports(d, line) != want {
			t.Errorf("no %s", line)
		}
	}
}

// TestTheLifetimeCountsFromTheEnd checks that a session's lifetime begins when its answer ends.
func TestTheLifetimeCountsFromTheEnd(t *testing.T) {
	d := withSessions(t, 1, false)
	l := wanted(t, d, ofSession(t, d, "s"))
	l.place = place(func(ex *relay.Exchange) error { ex.Close(); return nil })
	if err := l.Do(); err != nil {
		t.Fatal(err)
	}
	began := time.Now() // or a little earlier
	waitFor(t, func() bool { return time.Now().After(began) })
	l.Finish(relay.Complete)
	if _, known := d.sessions.Node(d.sessions.Key("sim", []byte("s")), began.Add(sessionLifetime)); !known {
		t.Error("the lifetime counts from the beginning of the answer")
	}
}

// TestSessionsAreExplained checks that Explain and the pick agree, and the reason.
func TestSessionsAreExplained(t *testing.T) {
	for _, hard := range []bool{false, true} {
		d := withSessions(t, 3, hard)
		ids, nodes := sessionsOfEach(t, d), d.current().snap.Nodes
		id, now := ids[nodes[0]], time.Now()
		explain := func() *Explanation {
			t.Helper()
			e, err := d.Explain(ofSession(t, d, id), Question{})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		if e := explain(); e.Winner != nodes[0].ID || strings.Contains(e.Why, "its session is there") {
			t.Errorf("hard %v: without a node: %s, %s", hard, e.Winner, e.Why)
		}
		r := ofSession(t, d, id)
		r.Pin = nodes[2].ID
		picked(t, d, r, now, true)
		want := map[bool]string{false: "within a tenth of the lowest", true: "router.session.affinity is hard"}[hard]
		if e := explain(); e.Winner != nodes[2].ID || !strings.Contains(e.Why, want) {
			t.Errorf("hard %v: %s, %s", hard, e.Winner, e.Why)
		}
	}
}

// TestASessionAtItsNodeAllocatesNothing checks the pick of a session that stays.
func TestASessionAtItsNodeAllocatesNothing(t *testing.T) {
	for _, hard := range []bool{false, true} {
		d := withSessions(t, 4, hard)
		r, l, body := request.New(), newLeg(), chat(2<<10)
		r.Session = []byte("s")
		node := picked(t, d, ofSession(t, d, "s"), time.Now(), true)
		if err := pick(d, r, l, body); err != nil {
			t.Fatal(err)
		}
		if least := allocations(t, d, r, l, body); least != 0 {
			t.Errorf("hard %v: %v allocations at %s", hard, least, node.ID)
		}
	}
}
