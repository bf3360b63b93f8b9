package leg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/sim/engine"
)

// twoRanked returns backends a and b of model sim, the first of which has two ranks.
func twoRanked() []fleet.Backend {
	backends := twoNodes()
	backends[0].DataParallel = 2
	return backends
}

// ofRank asks for a rank, as a field of the body would.
func ofRank(rank uint32) Question {
	return Question{Rank: policy.Given(rank), RankBy: "nvext.dp_rank"}
}

// chosen returns the member that a pick takes for q.
func chosen(t *testing.T, d *Dispatcher, q Question) *member {
	t.Helper()
	l := d.Leg(asked(t, d, chat(100)), q, nil)
	defer l.giveBack()
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	return l.pool.members[at]
}

// TestRanksAreCandidates: a node with ranks is one candidate for each. The ranks share the node and
// its patience, and each has its own load.
func TestRanksAreCandidates(t *testing.T) {
	backends := twoRanked()
	backends[0].MaxConcurrent = 5
	d := still(t, Options{}, backends...)
	l := d.Leg(asked(t, d, chat(3000)), Question{}, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	all := l.pool.members
	if len(all) != 3 || len(l.picks.cands) != 3 || all[0].node != all[1].node ||
		all[0].waits != all[1].waits || all[0].latch == all[1].latch || all[0].rank.Name != "a/0" ||
		all[1].rank.Name != "a/1" || all[2].rank.Name != "b" {
		t.Fatalf("%d members, %d candidates", len(all), len(l.picks.cands))
	}
	a, other := &l.picks.cands[0], &l.picks.cands[1]
	if a.IDHash == other.IDHash || a.IDHash != all[0].rank.IDHash || a.EngineSlots != 3 || a.MaxConcurrent != 5 {
		t.Errorf("%+v", a)
	}
	heads := 0
	for range l.pool.each {
		heads++
	}
	if heads != 2 {
		t.Errorf("%d nodes", heads)
	}
}

// TestRanksShareTheLimit: max_concurrent bounds the requests of all ranks together.
func TestRanksShareTheLimit(t *testing.T) {
	backends := twoRanked()[:1]
	backends[0].MaxConcurrent = 3
	d := still(t, Options{}, backends...)
	var legs []*Leg
	for range 3 {
		l := d.Leg(asked(t, d, chat(100)), ofRank(0), nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		legs = append(legs, l)
	}
	for rank := range uint32(2) {
		l := d.Leg(asked(t, d, chat(100)), ofRank(rank), nil)
		if _, err := l.first(); err != errAllBusy {
			t.Errorf("rank %d: %v", rank, err)
		}
		l.giveBack()
	}
	e, err := d.Explain(asked(t, d, chat(100)), Question{})
	if err != nil || e.Winner != "" || e.Candidates[0].Reason != "full: 3 in flight and 0 of others of 3 slots" ||
		e.Candidates[1].Reason != "full: the node's other ranks have all of its slots" {
		t.Errorf("%+v, %v", e, err)
	}
	legs[0].giveBack()
	if m := chosen(t, d, ofRank(1)); m.rank.Index != 1 {
		t.Errorf("rank %d", m.rank.Index)
	}
	legs[1].giveBack()
	legs[2].giveBack()
	n := d.fleet.Load().Nodes[0]
	if n.InFlight() != 0 || n.Ranks()[0].InFlight() != 0 || n.Ranks()[1].InFlight() != 0 {
		t.Errorf("%d in flight", n.InFlight())
	}
}

// TestPinOfARank: only the rank of that number is asked, and a number that no node has is the
// client's mistake.
func TestPinOfARank(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	for range 5 {
		if m := chosen(t, d, ofRank(1)); m.rank.Name != "a/1" {
			t.Errorf("at %s", m.rank.Name)
		}
	}
	q := pinnedTo("a")
	q.Rank, q.RankBy = ofRank(0).Rank, "x-dynamo-dp-rank"
	if m := chosen(t, d, q); m.rank.Name != "a/0" {
		t.Errorf("at %s", m.rank.Name)
	}
	if !counted(d, "dp_rank", 6) || !counted(d, "pinned", 1) {
		t.Error("not counted so")
	}
	pinned := pinnedTo("b")
	pinned.Rank, pinned.RankBy = ofRank(1).Rank, "x-dynamo-dp-rank"
	allowed := ofRank(1)
	allowed.Allowed = nvext.Workers{"b"}
	for says, q := range map[string]Question{
		"`nvext.dp_rank` is 2, but no node that may answer has more than 2 data-parallel ranks; send a number from 0 to 1": ofRank(2),
		"`x-dynamo-dp-rank` is 1, but no node that may answer has data-parallel ranks; leave it out":                       pinned,
		"`nvext.dp_rank` is 1, but no node that may answer has data-parallel ranks; leave it out":                          allowed,
	} {
		l := d.Leg(asked(t, d, chat(100)), q, nil)
		_, err := l.first()
		if l.giveBack(); err == nil || err.Status != 400 || err.Param != q.RankBy || err.Message != says {
			t.Errorf("%v, want %s", err, says)
		}
	}
	d.fleet.Load().Node("a").Health.SetAside("a test")
	l := d.Leg(asked(t, d, chat(100)), ofRank(1), nil)
	defer l.giveBack()
	if _, err := l.first(); err == nil || err.Status != 503 {
		t.Errorf("while the node is out: %v", err)
	}
}

// TestBusyRanks: thresholds are compared for each rank, and a node is out only if all its ranks
// are.
func TestBusyRanks(t *testing.T) {
	const blocks = 100
	d := still(t, Options{}, twoRanked()[:1]...)
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{PrefillTokens: new(blocks*prefix.BlockTokens - 1)})
	first := rehearse(t, d, blocks)
	rank := first.l.now.member.rank.Index
	for range 5 {
		if m := chosen(t, d, Question{}); m.rank.Index == rank {
			t.Error("a request goes to the busy rank")
		}
	}
	if !refused(t, d, ofRank(uint32(rank))) || refused(t, d, ofRank(uint32(1-rank))) {
		t.Error("a pin goes to the busy rank, or not to the other one")
	}
	second := rehearse(t, d, blocks)
	if second.l.now.member.rank.Index == rank || !refused(t, d, Question{}) {
		t.Error("a request goes to a node whose ranks are all busy")
	}
	first.Begun(time.Now())
	if m := chosen(t, d, Question{}); m.rank.Index != rank {
		t.Error("the prompt is computed, and the rank is still busy")
	}
	first.Finish(reported(0, 0), time.Now())
	second.Finish(reported(0, 0), time.Now())
	if n := d.fleet.Load().Nodes[0]; n.OwnPrefill(time.Now()) != 0 || n.Blocks() != 0 {
		t.Errorf("%d tokens and %v blocks are left", n.OwnPrefill(time.Now()), n.Blocks())
	}
}

// TestRetriesLeaveTheNode: a retry asks another node, not another rank of the first one.
func TestRetriesLeaveTheNode(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	defer l.giveBack()
	if err := l.resolve(); err != nil {
		t.Fatal(err)
	}
	l.d.where.Find(l.prompt, l.Request, l.model.name, l.model.seed, l.pool.ranks)
	l.tries.asked = append(l.tries.asked, l.pool.members[1])
	if at, err := l.choose(time.Now()); err != nil || l.pool.members[at].node.ID != "b" {
		t.Errorf("place %d, %v", at, err)
	}
	if !counted(d, "asked", 1) {
		t.Error("not counted so")
	}
}

// TestDirectBalancesTheRanks: mode direct takes the least loaded rank of the node.
func TestDirectBalancesTheRanks(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	p := *policy.Default()
	p.Mode = policy.Direct
	d.policy.Store(&p)
	q := ofRank(0)
	q.Node, q.Bond = "a", Named
	l := d.Leg(asked(t, d, chat(100)), q, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if m := chosen(t, d, pinnedTo("a")); m.rank.Name != "a/1" {
			t.Errorf("at %s", m.rank.Name)
		}
	}
}

// TestExplanationOfRanks: each rank has a row of its own, and the formula of mode cost names it.
func TestExplanationOfRanks(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	p := *policy.Default()
	p.Mode = policy.Cost
	d.policy.Store(&p)
	q := ofRank(0)
	q.Node, q.Bond = "a", Named
	l := d.Leg(asked(t, d, chat(1000)), q, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	e, err := d.Explain(asked(t, d, chat(1000)), ofRank(1))
	l.giveBack()
	if err != nil || len(e.Candidates) != 3 || e.Winner != "a" || e.WinnerRank == nil || *e.WinnerRank != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	zero, one, b := &e.Candidates[0], &e.Candidates[1], &e.Candidates[2]
	if zero.Title() != "a rank 0" || zero.InFlight != 1 || zero.Filter != "dp_rank" ||
		zero.Reason != "another data-parallel rank is pinned" {
		t.Errorf("%+v", zero)
	}
	if one.Title() != "a rank 1" || one.InFlight != 0 || !strings.HasPrefix(one.Formula, "Formula for a rank 1: ") {
		t.Errorf("%+v", one)
	}
	if b.Title() != "b" || b.Rank != nil || b.Filter != "dp_rank" {
		t.Errorf("%+v", b)
	}
}

// TestAPinnedRankSaysWhy checks that the error for a rank of a pinned node has the reason of that
// rank, and not that another one is pinned.
func TestAPinnedRankSaysWhy(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	for rank := range uint32(2) {
		q := ofRank(rank)
		q.Node, q.Bond = "a", Named
		q.Filter = func(*fleet.Node) bool { return false }
		_, err := d.Leg(asked(t, d, chat(100)), q, nil).first()
		if err == nil || strings.Contains(err.Message, "another data-parallel rank") ||
			!strings.Contains(err.Message, filterTexts[byPlan].sentence) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestRanksOfAnEngine: the engine computes each request at the chosen rank, and the router learns
// what each rank has.
func TestRanksOfAnEngine(t *testing.T) {
	var engines []*engine.Engine
	d := startWith(t, 1, &engines, func(c *engine.Config) { c.DataParallel, c.RecordRequests = 2, 16 })
	n := d.fleet.Load().Nodes[0]
	waitFor(t, func() bool { return len(n.Ranks()) == 2 })
	send := func(q Question, body []byte) (rank, matched int) {
		t.Helper()
		l := d.Leg(asked(t, d, body), q, place(func(ex *relay.Exchange) error { ex.Close(); return nil }))
		if err := l.Do(); err != nil {
			t.Fatal(err)
		}
		rank, matched = l.now.member.rank.Index, l.Matched()
		l.Finish(relay.Complete)
		got := lastPost(engines[0]).Header.Values("X-Data-Parallel-Rank")
		if !slices.Equal(got, []string{fmt.Sprint(rank)}) {
			t.Errorf("rank %d is named %q", rank, got)
		}
		return rank, matched
	}
	home, matched := send(Question{}, chat(3000))
	if matched != 0 {
		t.Errorf("%d blocks matched from the start", matched)
	}
	for range 4 {
		if rank, matched := send(Question{}, chat(3000)); rank != home || matched == 0 {
			t.Errorf("rank %d, %d blocks matched; want rank %d", rank, matched, home)
		}
	}
	if _, matched := send(ofRank(uint32(1-home)), chat(3000)); matched != 0 {
		t.Errorf("%d blocks of the other rank matched", matched)
	}
	one, other := engines[0].RankStats()[home], engines[0].RankStats()[1-home]
	if one.Completed != 5 || one.CacheHits == 0 || other.Completed != 1 || other.CacheHits != 0 {
		t.Errorf("%+v and %+v", one, other)
	}
	if !engineGetsNoRank(t) {
		t.Error("an engine without ranks is told one")
	}
}

// engineGetsNoRank says whether an engine with one rank gets no header for it.
func engineGetsNoRank(t *testing.T) bool {
	var engines []*engine.Engine
	d := startWith(t, 1, &engines, func(c *engine.Config) { c.RecordRequests = 16 })
	l := d.Leg(asked(t, d, chat(100)), ofRank(0), place(func(ex *relay.Exchange) error { ex.Close(); return nil }))
	if err := l.Do(); err != nil {
		t.Fatal(err)
	}
	l.Finish(relay.Complete)
	return lastPost(engines[0]).Header.Get("X-Data-Parallel-Rank") == ""
}

// TestSessionsStayAtTheirRank: a hard session goes to the rank that has answered it.
func TestSessionsStayAtTheirRank(t *testing.T) {
	d := still(t, Options{HardSessions: true}, twoRanked()...)
	d.sessions = affinity.NewSessions(100, sessionLifetime)
	now := time.Now()
	for rank := range uint32(2) {
		r := ofSession(t, d, fmt.Sprint("of rank ", rank))
		q := ofRank(rank)
		q.Node, q.Bond = "a", Named
		l := d.Leg(r, q, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.sessionAnswered(l.spare(), now)
		l.giveBack()
		for range 5 {
			l := d.Leg(ofSession(t, d, fmt.Sprint("of rank ", rank)), Question{}, nil)
			at, err := l.first()
			if err != nil || l.pool.members[at].rank.Name != fmt.Sprintf("a/%d", rank) {
				t.Errorf("the session of rank %d is at place %d, %v", rank, at, err)
			}
			l.giveBack()
		}
	}
}

// lastPost returns the engine's last request that is no look at its state.
func lastPost(e *engine.Engine) (last engine.Request) {
	for _, r := range e.Requests() {
		if r.Method == "POST" {
			last = r
		}
	}
	return last
}

// TestCandidatesOfRanks: of each rank a policy is told the rank's own requests and prompts.
func TestCandidatesOfRanks(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	q := pinnedTo("a")
	q.Rank = ofRank(0).Rank
	held := d.Leg(asked(t, d, chat(3000)), q, nil)
	if _, err := held.first(); err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string]string{"known": `{"mode":"cost"}`, "worthless": worthless["cost"]} {
		decide(t, d, doc)
		l := d.Leg(asked(t, d, chat(3000)), Question{}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.drop(l.spare())
		l.candidates(time.Now())
		a, other, b := l.picks.cands[0], l.picks.cands[1], l.picks.cands[2]
		if a.InFlight != 1 || a.PrefillTokens == 0 || a.ActiveBlocks == 0 {
			t.Errorf("%s: %+v", name, a)
		}
		for _, idle := range []policy.Candidate{other, b} {
			if idle.InFlight != 0 || idle.PrefillTokens != 0 || idle.ActiveBlocks != 0 {
				t.Errorf("%s: %+v", name, idle)
			}
		}
		l.permit.Release()
		l.recycle()
	}
	held.giveBack()
}

// TestPicksOfRanksAreLogged: the log of a pick names the rank of each candidate, of each one left
// out and of the chosen one.
func TestPicksOfRanksAreLogged(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	decide(t, d, `{"mode":"cost"}`)
	var out bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	chosen(t, d, ofRank(1))
	var rec struct {
		Node                string
		Rank                *int `json:"dp_rank"`
		Candidates, Removed []string
	}
	if err := json.Unmarshal(out.Bytes(), &rec); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	if rec.Node != "a" || rec.Rank == nil || *rec.Rank != 1 || len(rec.Candidates) != 1 ||
		!strings.HasPrefix(rec.Candidates[0], "Formula for a rank 1: ") || !slices.Equal(rec.Removed, []string{
		"a rank 0: dp_rank, another data-parallel rank is pinned", "b: dp_rank, another data-parallel rank is pinned",
	}) {
		t.Errorf("%s", out.Bytes())
	}
	out.Reset()
	chosen(t, d, pinnedTo("b"))
	if strings.Contains(out.String(), `"dp_rank"`) {
		t.Errorf("the only rank of a node is named: %s", out.Bytes())
	}
}

// TestQueueOfARank: a rank begins a request at once while it has room of its own, within the node's
// limit.
func TestQueueOfARank(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	n := d.current().models["sim"].pools[Answer].members[0]
	for _, c := range []struct {
		cand policy.Candidate
		want bool
	}{
		{policy.Candidate{InFlight: 9}, true},
		{policy.Candidate{InFlight: 1, Others: 1, EngineSlots: 3}, true},
		{policy.Candidate{InFlight: 2, Others: 1, EngineSlots: 3}, false},
		{policy.Candidate{InFlight: 1, MaxConcurrent: 2}, true},
		{policy.Candidate{InFlight: 2, MaxConcurrent: 2}, false},
		{policy.Candidate{MaxConcurrent: -1}, false}, // the other ranks have all slots
	} {
		if got := n.unqueued(&c.cand); got != c.want {
			t.Errorf("%+v: %v", c.cand, got)
		}
	}
}
