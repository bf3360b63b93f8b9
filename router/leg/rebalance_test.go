package leg

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
)

// conversation is a prompt that one node has cached, and a session at that node.
type conversation struct{ body, session string }

// request returns the prompt, as one of the session or without a session.
func (c *conversation) request(t *testing.T, d *Dispatcher, ofSession bool) *request.Request {
	t.Helper()
	r := asked(t, d, []byte(c.body))
	if ofSession {
		r.Session = []byte(c.session)
	}
	return r
}

// begun returns n conversations whose first answers the node has begun.
func begun(t *testing.T, d *Dispatcher, home *fleet.Node, n int) (all []conversation) {
	t.Helper()
	for i := range n {
		c := conversation{session: fmt.Sprint("session ", i)}
		c.body = fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"%d %s"}]}`, i,
			strings.Repeat("the quick brown fox jumps over the lazy dog. ", 150))
		r := c.request(t, d, true)
		r.Pin = home.ID
		l := wanted(t, d, r)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		a := l.spare()
		l.prompt.Sent(a.member.rank.Ref(), time.Now())
		l.prompt.Begun(a.member.rank.Ref())
		l.sessionAnswered(a, time.Now())
		l.giveBack()
		all = append(all, c)
	}
	return all
}

// TestRequestsWithoutASessionMoveFirst loads a node step by step. Requests without a session leave
// the node at a lower load than requests with the same prompt whose session is there, and these
// leave it, too.
func TestRequestsWithoutASessionMoveFirst(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Score, policy.Cost} {
		d := dispatcherOf(t, 2)
		d.sessions = affinity.NewSessions(100, sessionLifetime)
		p := policy.Default()
		p.Mode = mode
		d.policy.Store(p)
		home := d.current().snap.Nodes[0]
		all := begun(t, d, home, 12)
		const steps = 120
		const stays = -1
		left := map[bool][]int{} // the steps at which the requests leave, by ofSession
		for _, ofSession := range []bool{false, true} {
			left[ofSession] = slices.Repeat([]int{stays}, len(all))
		}
		load := make([]books.Entry, steps)
		for step := range steps {
			for i := range all {
				for ofSession, at := range left {
					r := all[i].request(t, d, ofSession)
					if at[i] == stays && picked(t, d, r, time.Now(), false) != home {
						at[i] = step
					}
				}
			}
			home.Acquire() // one more request, with four blocks to compute
			home.Ranks()[0].Book.Open(&load[step], books.Cost{Prefill: 64}, time.Now())
		}
		sum := map[bool]int{}
		for i := range all {
			plain, session := left[false][i], left[true][i]
			if plain == stays || session == stays || plain > session || mode == policy.Cost && plain == session {
				t.Errorf("%v, conversation %d: without a session at step %d, the session at step %d", mode, i, plain, session)
			}
			sum[false], sum[true] = sum[false]+plain, sum[true]+session
		}
		if sum[false] >= sum[true] {
			t.Errorf("%v: without a session after %d steps, sessions after %d", mode, sum[false], sum[true])
		}
		t.Logf("%v: without a session at steps %v, sessions at steps %v", mode, left[false], left[true])
		for i := range load {
			load[i].Close(time.Now())
			home.Release()
		}
	}
}
