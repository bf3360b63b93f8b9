package leg

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// toyFleet is a fleet in virtual time whose engines give the first token after 50 ms and another
// one each 20 ms, whatever they have to do. An answer has 200 tokens. Clients wait for a token for
// 10 s.
type toyFleet struct {
	*Dispatcher
	t   *testing.T
	now time.Time
	// Some nodes take other times: until the first token, and between two.
	firsts, gaps map[string]time.Duration
	runs         []toyRun
	had          map[string]int // requests
}

// toyRun is a running answer.
type toyRun struct {
	Rehearsal
	node       string
	tokens     int
	last, next time.Time // of the tokens
}

func newToyFleet(t *testing.T, nodes int) *toyFleet {
	t.Helper()
	var all []fleet.Backend
	for i := range nodes {
		all = append(all, fleet.Backend{URL: fmt.Sprintf("http://10.0.0.%d:1", i+1), ID: string(rune('a' + i)),
			Model: "sim"})
	}
	f := &toyFleet{Dispatcher: still(t, repeatable(), all...), t: t, now: time.Unix(1_700_000_000, 0)}
	decide(t, f.Dispatcher, predicted)
	return f
}

// answer sends requests, one each 100 ms, and returns how many each node got.
func (f *toyFleet) answer(requests int) map[string]int {
	f.had = map[string]int{}
	for range requests {
		r := rehearsed(f.t, f.Dispatcher, 20, f.now)
		id := r.Node().ID
		f.had[id]++
		f.runs = append(f.runs, toyRun{r, id, 0, f.now, f.now.Add(cmp.Or(f.firsts[id], 50*time.Millisecond))})
		f.wait(100 * time.Millisecond)
	}
	return f.had
}

// wait lets the engines work.
func (f *toyFleet) wait(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(10 * time.Millisecond)
		f.tick()
	}
}

func (f *toyFleet) tick() {
	running := f.runs[:0]
	for _, r := range f.runs {
		switch {
		case f.now.Sub(r.last) > 10*time.Second:
			r.l.silenceCame(r.l.now, f.now)
			r.l.drop(r.l.now)
			r.l.close()
			continue
		case !f.now.Before(r.next):
			if r.tokens++; r.tokens == 1 {
				r.Begun(f.now)
			}
			r.Generated(r.tokens, f.now)
			r.last, r.next = f.now, f.now.Add(cmp.Or(f.gaps[r.node], 20*time.Millisecond))
		}
		if r.tokens == 200 {
			r.Finish(usage.Counts{Completion: 200}, f.now)
			continue
		}
		running = append(running, r)
	}
	f.runs = running
}

// end ends the running answers.
func (f *toyFleet) end() {
	for _, r := range f.runs {
		r.Finish(usage.Counts{}, f.now)
	}
}

// TestSilentNodesGetFewRequests checks a node that gives first tokens as quickly as others, and
// then no more, or few. It gets few requests, also while its clients leave, and its share again
// once it is as fast as the others.
func TestSilentNodesGetFewRequests(t *testing.T) {
	for name, c := range map[string]struct {
		gap        time.Duration
		most, rest int // of the first 60 requests, and of 240 more
	}{
		"hangs": {time.Hour, 3, 6}, "a token each 10 s": {10 * time.Second, 3, 6},
		"a token each s": {time.Second, 3, 3}, "a token each 200 ms": {200 * time.Millisecond, 10, 3},
	} {
		f := newToyFleet(t, 4)
		if had := f.answer(200); had["a"] < 30 {
			t.Errorf("%s: %v of 200 requests to equal nodes", name, had)
		}
		f.wait(time.Minute) // nothing runs when the node changes
		f.gaps = map[string]time.Duration{"a": c.gap}
		first := f.answer(60)["a"]
		rest := f.answer(240)["a"]
		if first > c.most || rest > c.rest {
			t.Errorf("%s: %d of 60 requests, and then %d of 240", name, first, rest)
		}
		f.gaps = nil
		f.answer(3000)
		if had := f.answer(400); had["a"] < 50 {
			t.Errorf("%s: %v of 400 requests after the node is as fast again", name, had)
		}
		f.end()
	}
}

// heard returns the leg of a streamed request whose first token came at the time first, and a
// function that reads tokens of its answer.
func heard(t *testing.T, d *Dispatcher) (l *Leg, first time.Time, tokens func(at time.Time, n int)) {
	l = d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.now, l.Request.Scan.Stream = l.spare(), true
	first = time.Now()
	l.now.sent, l.now.streams, l.now.taken = first.Add(-50*time.Millisecond), true, true
	l.begun(l.now, first)
	data := []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	return l, first, func(at time.Time, n int) {
		for range n {
			l.Event(sse.Event{Data: data, Raw: data}, at)
		}
	}
}

// TestSilenceInPicks checks what a pick knows of a node's silence.
func TestSilenceInPicks(t *testing.T) {
	d := start(t, 1)
	decide(t, d, predicted)
	l, first, tokens := heard(t, d)
	defer l.giveBack()
	n := l.now.member
	look := func(after time.Duration) policy.Timing { return l.timing(n, n.rank.InFlight(), first.Add(after)) }
	for _, c := range []struct {
		token, at time.Duration
		want      float64
	}{
		{0, silentFrom - time.Millisecond, 0}, {0, silentFrom, silentFrom.Seconds()}, {0, 5 * time.Second, 5},
		{0, time.Hour, silentMost.Seconds()}, {2 * time.Second, 2100 * time.Millisecond, 0},
		{2 * time.Second, 5 * time.Second, 3},
	} {
		if c.token > 0 {
			tokens(first.Add(c.token), 8)
		}
		if got := look(c.at).Silent; math.Abs(got-c.want) > 0.02 {
			t.Errorf("%v after the first token, and the last token at %v: silent for %v s, want %v", c.at, c.token,
				got, c.want)
		}
	}
	step := 0.1 // of an engine that is slow by nature
	if a, b := standstill(time.Second, step), standstill(700*time.Millisecond, step); a != 1 || b != 0 {
		t.Errorf("with steps of %v s: %v, %v", step, a, b)
	}
	r := rehearsed(t, d, 400, first.Add(2*time.Second)) // the node is expected to compute a prompt
	f := &r.l.now.forecast
	at := 2*time.Second + f.prefill + f.lag + 3*time.Second
	if got := look(at); got.Overdue != 3 || got.Wait != 0 || got.Silent > f.lag.Seconds()+0.02 {
		t.Errorf("beside an overdue prompt: %+v", got)
	}
	r.Finish(usage.Counts{}, first.Add(at))
}

// TestSilentNodesAreNamed checks what people are told of a node that gives no tokens: only a
// silence that counts in picks.
func TestSilentNodesAreNamed(t *testing.T) {
	d := start(t, 2)
	decide(t, d, predicted)
	l, first, tokens := heard(t, d)
	defer l.giveBack()
	id := l.now.member.node.ID
	silent := func(after time.Duration) float64 {
		all := d.Speeds(first.Add(after))
		if all[id] == nil {
			return 0
		}
		if len(all) != 1 {
			t.Errorf("%v named beside %s", all, id)
		}
		return all[id].Silent
	}
	for after, want := range map[time.Duration]float64{
		silentFrom - time.Millisecond: 0, silentFrom: silentFrom.Seconds(), 15 * time.Second: 15, 2 * silentMost: 120,
	} {
		if got := silent(after); math.Abs(got-want) > 0.02 {
			t.Errorf("%v after the first token it is silent for %v s, want %v", after, got, want)
		}
	}
	decide(t, d, `{"mode":"cost"}`)
	if got := silent(15 * time.Second); got != 0 {
		t.Errorf("in mode cost: silent for %v s", got)
	}
	decide(t, d, predicted)
	tokens(first.Add(2*time.Minute), 16)
	if got := silent(2*time.Minute + time.Millisecond); got != 0 {
		t.Errorf("after some tokens: silent for %v s", got)
	}
}

// TestSlowReadersAreNoSilence checks that the time in which a client holds up an answer is no
// silence of the node, and teaches nothing.
func TestSlowReadersAreNoSilence(t *testing.T) {
	d := start(t, 1)
	decide(t, d, predicted)
	l, at, tokens := heard(t, d)
	defer l.giveBack()
	n := l.now.member
	gaps := func() int { _, gaps := taught(n.engine); return gaps }
	stalled := func(after time.Duration) float64 { return l.timing(n, 1, at.Add(after)).Silent }
	tokens(at, 1)
	l.Held(true, at)
	if got := stalled(20 * time.Second); got != 0 {
		t.Errorf("while the client holds it up, the node is stalled for %v s", got)
	}
	at = at.Add(20 * time.Second)
	l.Held(false, at)
	if a, b := stalled(100*time.Millisecond), stalled(time.Second); a != 0 || b != 1 {
		t.Errorf("after the client has read, the node is stalled for %v s and %v s", a, b)
	}
	for range 8 {
		at = at.Add(time.Millisecond)
		tokens(at, 1)
	}
	if gaps() != 0 {
		t.Error("events that waited for the client have taught")
	}
	for range 40 { // a write takes no time
		at = at.Add(time.Second)
		tokens(at, 1)
		l.Held(true, at)
		l.Held(false, at.Add(time.Millisecond))
	}
	if gaps() < 8 {
		t.Errorf("%d stretches of slow events have taught", gaps())
	}
	// A client that leaves while it holds up the answer says nothing about the node.
	before := gaps()
	l.Held(true, at)
	l.silenceCame(l.now, at.Add(time.Minute))
	if gaps() != before {
		t.Error("the silence of a slow reader has taught")
	}
}

// TestSilenceTeaches checks that an answer that breaks off after a silence teaches a slow step, if
// enough is known of the kind's usual steps, and that a broken answer without a silence does not.
func TestSilenceTeaches(t *testing.T) {
	d := start(t, 1)
	decide(t, d, predicted)
	e := d.current().models["sim"].pools[Answer].members[0].engine
	factor := func() float64 { _, known := e.Known(); return known.Factor }
	for i, c := range []struct {
		silence time.Duration
		known   bool
		o       relay.Outcome
		teaches bool
	}{
		{time.Minute, false, relay.ClientGone, false}, {10 * time.Millisecond, true, relay.ClientGone, false},
		{time.Minute, true, relay.Complete, false}, {time.Minute, true, relay.ClientGone, true},
		{time.Minute, true, relay.IdleTimeout, true},
	} {
		l, first, tokens := heard(t, d)
		at := first
		for range 40 * 32 {
			if !c.known {
				break
			}
			at = at.Add(20 * time.Millisecond)
			tokens(at, 1)
		}
		l.Reading.Last = first.Add(-c.silence) // the end is now
		l.now.forecast.looked = l.Reading.Last
		l.now.forecast.together, l.now.status = 0, 200
		_, before := taught(e)
		was := factor()
		l.Finish(c.o)
		if _, after := taught(e); after > before != c.teaches || c.teaches != (factor() > 1.05*was) {
			t.Errorf("%d: %d stretches, and %d before; the factor is %v after %v", i, after, before, factor(), was)
		}
	}
}

// TestShortAnswersTeach checks that an answer which ends before the first look at its spacing
// teaches it at its end, and that an answer of a few tokens does not.
func TestShortAnswersTeach(t *testing.T) {
	d := still(t, repeatable(), twoNodes()...)
	decide(t, d, predicted)
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct{ tokens, reported, gaps int }{
		{24, 24, 1}, {24, 5, 1}, {24, gapsFew, 0}, {24, 0, 1}, {gapsFew, gapsFew, 0}, {2, 2, 0}, {40, 40, 1},
	} {
		r := rehearsed(t, d, 50, now)
		l, e := r.l, r.l.now.member.engine
		_, before := taught(e)
		r.Begun(now)
		for i := range c.tokens - 1 {
			now = now.Add(10 * time.Millisecond)
			r.Generated(i+2, now)
		}
		l.endCame(l.now, int64(c.tokens), int64(c.reported), now)
		if _, after := taught(e); after-before != c.gaps {
			t.Errorf("%+v: %d stretches have taught", c, after-before)
		}
		l.now.forecast.looked = time.Time{}
		r.Finish(usage.Counts{}, now)
	}
}

// TestGivenUpAttemptsTeach checks that an attempt which was given up late teaches that its node is
// at least so slow, and counts as an error of its forecast. One that was given up early does not.
func TestGivenUpAttemptsTeach(t *testing.T) {
	for _, c := range []struct {
		v       verdict
		took    time.Duration
		teaches int
	}{
		{stalled, 9 * time.Second, 1}, {overdue, 9 * time.Second, 1}, {late, 9 * time.Second, 1},
		{stalled, time.Microsecond, 0}, {broken, 9 * time.Second, 0}, {abandoned, 9 * time.Second, 0},
	} {
		d := start(t, 1)
		d.log = slog.New(slog.DiscardHandler)
		decide(t, d, predicted)
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		a := l.spare()
		a.sent, l.Request.Scan.Stream = time.Now().Add(-c.took), true
		before, _ := taught(a.member.engine)
		missed := sumOf(t, d, "cgn_router_expected_ttft_error_seconds")
		l.judge(a, c.v, errors.New("given up"))
		if after, _ := taught(a.member.engine); after-before != c.teaches {
			t.Errorf("%v after %v: %d first tokens have taught", c.v, c.took, after-before)
		}
		missed = sumOf(t, d, "cgn_router_expected_ttft_error_seconds") - missed
		if (missed < -1) != (c.teaches > 0) {
			t.Errorf("%v after %v: an error of %v s", c.v, c.took, missed)
		}
		l.giveBack()
	}
}
