package leg

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/where"
)

// TestWhatIsKnownOfANewPrompt checks that blocks count of which the index knows nothing.
func TestWhatIsKnownOfANewPrompt(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	for _, holder := range []string{"a", "b"} {
		keys := make([]uint64, 40)
		for i := range keys {
			keys[i] = d.o.Random()
		}
		r, err := d.Rehearse(Piece{Keys: keys, Known: func(n *fleet.Node) int32 {
			if n.ID == holder {
				return 40
			}
			return 0
		}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if r.Node().ID != holder {
			t.Errorf("%s is picked, and %s holds the prompt", r.Node().ID, holder)
		}
		r.Finish(reported(640, 640), time.Now())
	}
}

// reported returns an engine's report about a prompt of this many tokens.
func reported(prompt, cached int64) usage.Counts {
	return usage.Counts{Prompt: prompt, HasPrompt: true, Cached: cached, HasCached: true}
}

// TestRehearsal rehearses requests. Placing, counting and learning work although no server runs at
// the nodes' addresses.
func TestRehearsal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	index := prefix.NewIndex(prefix.Options{Inline: true, Now: func() time.Time { return now }})
	log := slog.New(slog.DiscardHandler)
	f, err := fleet.New(fleet.Options{Index: index, Logger: log, Proven: true, Backends: []fleet.Backend{
		{URL: "http://10.0.0.1:1", ID: "a", Model: "m", MaxConcurrent: 1},
		{URL: "http://10.0.0.2:1", ID: "b", Model: "m", MaxConcurrent: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := New(Parts{
		Fleet: f, Where: &where.Finder{Index: index}, Policy: &atomic.Pointer[policy.Policy]{},
		Gate:   admission.New(admission.Options{}),
		Budget: admission.NewBudget(20, 64, nil), Metrics: metrics.New(), Stored: affinity.New(1), Logger: log,
	}, Options{Feedback: true, Random: func() uint64 { return 1 }})
	d.policy.Store(policy.Default())
	keys := make([]uint64, 40)
	for i := range keys {
		keys[i] = uint64(i+1) << 40
	}
	place := func(known func(*fleet.Node) int32, matched int) Rehearsal {
		t.Helper()
		r, err := d.Rehearse(Piece{Keys: keys, Known: known}, now)
		if err != nil {
			t.Fatal(err)
		}
		if r.Matched() != matched || r.Node().InFlight() != 1 {
			t.Errorf("%d blocks matched, want %d; %d in flight", r.Matched(), matched, r.Node().InFlight())
		}
		return r
	}
	first := place(nil, 0)
	second := place(nil, 0)
	if _, err := d.Rehearse(Piece{Keys: keys}, now); err != errAllBusy {
		t.Errorf("a request for two full nodes: %v", err)
	}
	home, other := first.Node(), second.Node()
	first.Finish(reported(640, 0), now)
	second.Finish(reported(640, 0), now)
	now = now.Add(time.Second)
	again := place(func(n *fleet.Node) int32 {
		if n == other {
			return 40
		}
		return 0
	}, 40)
	if again.Node() != other {
		t.Error("what is known was not believed")
	}
	// The prediction was wrong: the node's beliefs now date from before its last loss.
	again.Finish(reported(640, 0), now)
	now = now.Add(2 * time.Second)
	again = place(nil, 40)
	if d.gate.InFlight() != 1 {
		t.Errorf("%d permits are out, want 1", d.gate.InFlight())
	}
	again.Finish(reported(640, 640), now)
	if home.InFlight() != 0 || other.InFlight() != 0 || d.gate.InFlight() != 0 {
		t.Error("something was not given back")
	}
}

// TestRehearsedAnswersGrow checks that the blocks of an answer count in a rehearsal as they do in a
// stream, and that the spacing of its tokens teaches at the same ones.
func TestRehearsedAnswersGrow(t *testing.T) {
	const tokens, step = 100, 20 * time.Millisecond
	now := time.Unix(1_700_000_000, 0)
	rehearsing, streaming := still(t, Options{}, twoNodes()[:1]...), still(t, Options{}, twoNodes()[:1]...)
	decide(t, rehearsing, predicted)
	decide(t, streaming, predicted)
	r := rehearsed(t, rehearsing, 10, now)
	l := streaming.Leg(asked(t, streaming, chat(2000)), Question{}, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.now, l.Request.Scan.Stream = l.spare(), true
	l.now.sent = now
	seen := func(a *attempt, before float64) (blocks float64, gaps int) {
		_, gaps = taught(a.member.engine)
		return a.member.rank.Book.Blocks() - before, gaps
	}
	prompts := [2]float64{r.l.now.member.rank.Book.Blocks(), l.now.member.rank.Book.Blocks()}
	r.Begun(now.Add(time.Second))
	l.begun(l.now, now.Add(time.Second))
	data := []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	for n := range tokens {
		at := now.Add(time.Second + time.Duration(n)*step)
		l.Event(sse.Event{Data: data, Raw: data}, at)
		r.Generated(n+1, at)
		blocks, gaps := seen(r.l.now, prompts[0])
		if wantBlocks, wantGaps := seen(l.now, prompts[1]); blocks != wantBlocks || gaps != wantGaps ||
			blocks != float64(n/prefix.BlockTokens+1) || gaps != n/gapsEvery {
			t.Fatalf("after %d tokens: %v blocks and %d gaps rehearsed, %v and %d streamed", n+1, blocks, gaps,
				wantBlocks, wantGaps)
		}
	}
	r.Finish(reported(160, 0), now.Add(time.Minute))
}

// TestRehearsedBurst checks a prompt that a node is computing. The prompt counts as waiting for
// each request that brings it, and as held from the first token on. Without limits no node gets
// more than twice the mean.
func TestRehearsedBurst(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	index := prefix.NewIndex(prefix.Options{Inline: true, Now: func() time.Time { return now }})
	log := slog.New(slog.DiscardHandler)
	var backends []fleet.Backend
	for i := range 8 {
		url := fmt.Sprintf("http://10.0.0.%d:1", i+1)
		backends = append(backends, fleet.Backend{URL: url, ID: fmt.Sprint(i), Model: "m"})
	}
	f, err := fleet.New(fleet.Options{Index: index, Logger: log, Proven: true, Backends: backends})
	if err != nil {
		t.Fatal(err)
	}
	d := New(Parts{
		Fleet: f, Where: &where.Finder{Index: index}, Policy: &atomic.Pointer[policy.Policy]{},
		Gate:   admission.New(admission.Options{}),
		Budget: admission.NewBudget(20, 64, nil), Metrics: metrics.New(), Stored: affinity.New(1), Logger: log,
	}, Options{Feedback: true, Random: rand.New(rand.NewPCG(1, 2)).Uint64})
	d.policy.Store(policy.Default())
	keys := make([]uint64, 375)
	for i := range keys {
		keys[i] = uint64(i+1) << 40
	}
	var burst []Rehearsal
	had := map[*fleet.Node]int{}
	for range 200 {
		r, err := d.Rehearse(Piece{Keys: keys}, now)
		if err != nil || r.Matched() != 0 {
			t.Fatalf("%d blocks held before anybody has begun, %v", r.Matched(), err)
		}
		burst = append(burst, r)
		had[r.Node()]++
	}
	queued := func(n *fleet.Node) int64 {
		m := d.current().models["m"]
		return m.member(Answer, n).rank.Book.Prefill(now)
	}
	for n, sent := range had {
		if len(had) < 4 || sent > 50 || queued(n) != int64(sent*375*prefix.BlockTokens) {
			t.Errorf("%s has %d requests, %d tokens wait; %d nodes have some", n.ID, sent, queued(n), len(had))
		}
	}
	now = now.Add(time.Second)
	for _, r := range burst {
		r.Begun(now)
	}
	again, refused := d.Rehearse(Piece{Keys: keys}, now)
	if refused != nil || again.Matched() != 375 {
		t.Errorf("%d blocks held once all have begun, %v", again.Matched(), refused)
	}
	for _, r := range append(burst, again) {
		r.Finish(reported(6000, 6000), now)
	}
	for n := range had {
		if n.InFlight() != 0 || queued(n) != 0 {
			t.Errorf("%s keeps %d requests and %d tokens", n.ID, n.InFlight(), queued(n))
		}
	}
}

// TestRehearsedHandover rehearses a request whose prompt another node computes. Both picks charge,
// count and teach their nodes, each at its time.
func TestRehearsedHandover(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	d := still(t, Options{Disagg: Disagg{Always: true, ColocateBelow: 512}},
		fleet.Backend{URL: "http://10.0.0.1:1", ID: "p", Model: "sim", Role: "prefill", Connector: "nixl"},
		fleet.Backend{URL: "http://10.0.0.2:1", ID: "d", Model: "sim", Role: "decode", Connector: "nixl"})
	decide(t, d, predicted)
	short := rehearsed(t, d, 10, now)
	if p := short.Prefill(); p != nil {
		t.Errorf("%s computes a short prompt", p.ID)
	}
	short.Finish(reported(160, 0), now)
	r := rehearsed(t, d, 100, now)
	p := r.Prefill()
	if p == nil || p.ID != "p" || r.Node().ID != "d" || r.Matched() != 0 {
		t.Fatalf("%v computes the prompt for %s", p, r.Node().ID)
	}
	m := d.current().models["sim"]
	at, to := m.member(Prefill, p), m.member(Answer, r.Node())
	if n := at.rank.Book.WaitingPrompts(); n != 1 || to.rank.Book.Elsewhere() != 1 || p.InFlight() != 1 {
		t.Errorf("%d prompts wait at p, %d requests at d; %d in flight at p", n, to.rank.Book.Elsewhere(), p.InFlight())
	}
	now = now.Add(time.Second)
	r.HandedOver(reported(1600, 160), now)
	prefills, _ := at.engine.Known()
	if !at.rank.Book.Empty() || p.InFlight() != 0 || prefills.Answers != 1 || r.Prefill() != nil {
		t.Errorf("p has %d requests, and its engine was taught %d times", p.InFlight(), prefills.Answers)
	}
	before := m.transfer.Expected(1600)
	now = now.Add(time.Second)
	r.Begun(now)
	if after := m.transfer.Expected(1600); after <= before || to.rank.Book.Elsewhere() != 0 {
		t.Errorf("a transfer of %v s is expected, %v before", after, before)
	}
	prefills, _ = to.engine.Known()
	r.Finish(reported(1600, 0), now)
	if !to.rank.Book.Empty() || to.node.InFlight() != 0 || prefills.Answers != 0 {
		t.Errorf("d has %d requests, and its engine was taught %d times", to.node.InFlight(), prefills.Answers)
	}
}
