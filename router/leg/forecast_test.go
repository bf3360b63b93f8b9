package leg

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/sim/engine"
)

const predicted = `{"mode":"predicted"}`

// speedsOf returns what is known about the times of a node's engine with model sim.
func speedsOf(d *Dispatcher, id string) *predict.Engine {
	for _, m := range d.current().models["sim"].pools[Answer].members {
		if m.node.ID == id {
			return m.engine
		}
	}
	return nil
}

// rehearsed chooses a node for a prompt of its own with this number of blocks, at now.
func rehearsed(t *testing.T, d *Dispatcher, blocks int, now time.Time) Rehearsal {
	t.Helper()
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = d.o.Random()
	}
	r, err := d.Rehearse(Piece{Keys: keys}, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// taught returns the numbers of first tokens and of stretches that have taught an engine's times.
func taught(e *predict.Engine) (firsts, gaps int) {
	prefills, decodes := e.Known()
	return prefills.Answers, decodes.Answers
}

// repeatable returns options that draw the same numbers in every run. With others, one in some
// hundred runs has a prompt whose class of lengths takes the place of the model's.
func repeatable() Options { return Options{Random: rand.New(rand.NewPCG(1, 2)).Uint64} }

// unlearned is the time of a prompt's prefill, in seconds, before anything was learned.
func unlearned(blocks int) float64 {
	s := predict.Untaught()
	return s.Prefill(predict.Prompt(int64(blocks)*prefix.BlockTokens, 0))
}

// TestTiming checks what a pick knows about a node: its own requests, and those of others.
func TestTiming(t *testing.T) {
	d := still(t, Options{})
	now := time.Now()
	told := &cluster.NodeHealth{NodeID: "a", Address: "http://10.0.0.1:1", Models: []string{"sim"}, Ready: true}
	d.fleet.Beat(now, told)
	decide(t, d, predicted)
	first, second := rehearsed(t, d, 100, now), rehearsed(t, d, 50, now)
	first.Begun(now)
	n := d.current().models["sim"].pools[Answer].members[0]
	look := func(now time.Time) policy.Timing {
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		defer l.giveBack()
		if err := l.resolve(); err != nil {
			t.Fatal(err)
		}
		l.picks.policy = d.policy.Load()
		return l.timing(n, n.rank.InFlight(), now)
	}
	nearly := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	got := look(now)
	nearly("wait", got.Wait, unlearned(50))
	if got.Pressing != 1 || got.Decoding != 1 || got.Blocks != 150 {
		t.Errorf("%+v", got)
	}
	nearly("wait, half over", look(now.Add(time.Duration(unlearned(50)/2*1e9))).Wait, unlearned(50)/2)

	told.BlockTokens = 32
	told.Load.InFlight, told.Load.QueueDepth = load.Known(7), load.Known(2)
	told.Load.FreeBlocks, told.Load.TotalBlocks = load.Known(100), load.Known(1100)
	d.fleet.Beat(now, told)
	others := n.rank.Load()
	if others.Others == 0 || others.Waiting == 0 || others.OthersBlocks == 0 {
		t.Fatalf("%+v", others)
	}
	got = look(now)
	untaught := predict.Untaught()
	mean := untaught.Prefill(predict.Prompt(n.rank.Book.Mean(), 0))
	nearly("wait, with others", got.Wait, unlearned(50)+float64(others.Waiting)*mean)
	if got.Pressing != 1+float64(others.Waiting) || got.Decoding != 1+float64(others.Others-others.Waiting) ||
		got.Blocks != 150+float64(others.OthersBlocks) {
		t.Errorf("%+v, others %+v", got, others)
	}
	first.Finish(reported(1600, 0), now)
	second.Finish(reported(800, 0), now)
	noneLeft(t, d.fleet.Load().Nodes)
}

// TestForecastOfAnAttempt checks that an attempt is forecast without itself, and behind the
// attempts before it.
func TestForecastOfAnAttempt(t *testing.T) {
	d := still(t, Options{}, twoNodes()[:1]...)
	decide(t, d, predicted)
	now := time.Now()
	var all []Rehearsal
	for i := range 3 {
		r := rehearsed(t, d, 100, now)
		s, f := predict.Untaught(), &r.l.now.forecast
		want := predict.First{
			Wait: float64(i) * unlearned(100), Ahead: float64(i), Work: predict.Prompt(1600, 0),
			Step: s.Decode(0, float64(100*i)),
		}
		s.Forecast(&want)
		if math.Abs(f.first.Wait-want.Wait) > 1e-6 || f.first.Ahead != want.Ahead || f.first.Work != want.Work ||
			f.first.Step != want.Step || math.Abs(f.first.Expected-want.Expected) > 1e-6 {
			t.Errorf("attempt %d: %+v, want %+v", i, f.first, want)
		}
		if r.Expected() != time.Duration(f.first.Expected*1e9) || math.Abs(f.prefill.Seconds()-unlearned(100)) > 1e-6 {
			t.Errorf("attempt %d: %v, prefill %v", i, r.Expected(), f.prefill)
		}
		all = append(all, r)
	}
	all[0].Begun(now)
	r := rehearsed(t, d, 100, now)
	if s := predict.Untaught(); r.l.now.forecast.first.Step != s.Decode(1, 300) || r.l.now.forecast.first.Ahead != 2 {
		t.Errorf("beside a decoding request: %+v", r.l.now.forecast.first)
	}
	for _, r := range append(all, r) {
		r.Finish(reported(1600, 0), now)
	}
	noneLeft(t, d.fleet.Load().Nodes)
}

// TestRehearsedRates checks that rates follow the times of answers, and lengths the engines'
// reports.
func TestRehearsedRates(t *testing.T) {
	d := still(t, repeatable(), twoNodes()...)
	decide(t, d, predicted)
	now := time.Unix(1_700_000_000, 0)
	const token, step = time.Millisecond, 50 * time.Millisecond
	late := 0.0
	for i := range 200 {
		blocks := 10 + i%50
		r := rehearsed(t, d, blocks, now)
		took := time.Duration(blocks*prefix.BlockTokens)*token + step
		late = math.Abs(r.Expected().Seconds()/took.Seconds() - 1)
		now = now.Add(took)
		r.Begun(now)
		now = now.Add(gapsEvery * step)
		r.Generated(1+gapsEvery, now)
		r.Finish(usage.Counts{Completion: 33}, now)
	}
	firsts, gaps := 0, 0
	for _, id := range []string{"a", "b"} {
		f, g := taught(speedsOf(d, id))
		firsts, gaps = firsts+f, gaps+g
	}
	s := speedsOf(d, "a").Speed()
	if off := s.DecodeFactor*s.Decode(1, 30)/step.Seconds() - 1; firsts != 200 || gaps != 200 || late > 0.1 ||
		math.Abs(off) > 0.1 {
		t.Errorf("%d first tokens, %d gaps, the last first token %.2f off, steps %.2f off", firsts, gaps, late, off)
	}
	if speedsOf(d, "b").Kind() != speedsOf(d, "a").Kind() || speedsOf(d, "b") == speedsOf(d, "a") {
		t.Error("like engines are of one kind, and each is itself")
	}
	r := rehearsed(t, d, 20, now)
	if got := r.l.output(); math.Abs(got-33) > 4 {
		t.Errorf("%v tokens are expected of an answer", got)
	}
	r.Finish(usage.Counts{}, now)
}

// TestNothingIsForeseenInOtherModes checks that other modes forecast and learn nothing.
func TestNothingIsForeseenInOtherModes(t *testing.T) {
	for _, mode := range policy.ModeNames() {
		if mode == "predicted" || mode == "direct" {
			continue
		}
		d := still(t, Options{}, twoNodes()...)
		decide(t, d, fmt.Sprintf(`{"mode":%q}`, mode))
		now := time.Now()
		r := rehearsed(t, d, 50, now)
		if r.l.now.forecast != (forecast{}) || r.Expected() != 0 || len(r.l.picks.times) != 0 {
			t.Errorf("%s: %+v", mode, r.l.now.forecast)
		}
		if b := &r.l.now.member.rank.Book; b.Backlog(now) != 0 {
			t.Errorf("%s: a backlog of %v", mode, b.Backlog(now))
		}
		e := r.l.now.member.engine
		r.Begun(now.Add(time.Second))
		r.Generated(33, now.Add(2*time.Second))
		r.Finish(usage.Counts{Completion: 7}, now.Add(2*time.Second))
		firsts, gaps := taught(e)
		got := d.forecasts.lengths.Expected(&predict.Class{Model: d.current().models["sim"].hash})
		if firsts+gaps != 0 || math.Abs(got-256) > 1e-6 {
			t.Errorf("%s: %d first tokens, %d gaps, %v tokens of output", mode, firsts, gaps, got)
		}
	}
}

// TestWithoutLearning checks that with learn off all nodes have the start values, and that their
// answers teach no rates.
func TestWithoutLearning(t *testing.T) {
	d := still(t, repeatable(), twoNodes()...)
	decide(t, d, predicted)
	now := time.Unix(1_700_000_000, 0)
	answers := func(n int) {
		for range n {
			r := rehearsed(t, d, 50, now)
			now = now.Add(5 * time.Second)
			r.Begun(now)
			now = now.Add(5 * time.Second)
			r.Generated(33, now)
			r.Finish(usage.Counts{Completion: 33}, now)
		}
	}
	answers(10)
	compared := sumOf(t, d, "cgn_router_expected_ttft_error_seconds")
	was, before := *speedsOf(d, "a").Kind().Rates(), speedsOf(d, "a").Speed()
	decide(t, d, `{"mode":"predicted","predicted":{"learn":false}}`)
	r := rehearsed(t, d, 50, now)
	s, want := predict.Untaught(), predict.First{Work: predict.Prompt(800, 0)}
	want.Step = s.Decode(0, 0)
	if s.Forecast(&want); math.Abs(r.Expected().Seconds()-want.Expected) > 1e-6 {
		t.Errorf("%v are expected, want %v s", r.Expected(), want.Expected)
	}
	r.Finish(usage.Counts{}, now)
	answers(20)
	if is := speedsOf(d, "a").Speed(); *speedsOf(d, "a").Kind().Rates() != was || is != before {
		t.Errorf("%+v was learned, after %+v", is, before)
	}
	compared = sumOf(t, d, "cgn_router_expected_ttft_error_seconds") - compared
	if math.Abs(compared-20*(want.Expected-5)) > 1e-6 {
		t.Errorf("errors of %v s altogether of 20 answers", compared)
	}
	if r := rehearsed(t, d, 50, now); math.Abs(r.l.output()-33) > 12 {
		t.Errorf("%v tokens are expected of an answer", r.l.output())
	}
}

// TestGapsOfSlowReaders checks that events that were read together teach nothing, because they
// waited for the client, and that other events do.
func TestGapsOfSlowReaders(t *testing.T) {
	d := start(t, 1)
	decide(t, d, predicted)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	a := l.spare()
	a.sent, a.streams, l.Request.Scan.Stream = time.Now(), true, true
	l.now = a
	at := a.sent.Add(time.Second)
	l.firstCame(a, at)
	data := []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	events := func(n, together int) (gaps int) {
		for i := range n {
			if i%together == 0 {
				at = at.Add(time.Duration(together) * 20 * time.Millisecond)
			}
			l.Event(sse.Event{Data: data, Raw: data}, at)
		}
		_, gaps = taught(a.member.engine)
		return gaps
	}
	for _, c := range []struct{ n, together, gaps int }{
		{1, 1, 0}, {32, 1, 1}, {32, 2, 2}, {32, 16, 2}, {96, 48, 2}, {32, 1, 3},
	} {
		if got := events(c.n, c.together); got != c.gaps {
			t.Errorf("%d events, %d together: %d gaps have taught, want %d", c.n, c.together, got, c.gaps)
		}
	}
}

// TestCallersLengths checks that the classes of an answer follow from the model, the beginning of
// the prompt, the session and max_tokens, and that a hint of the client comes first.
func TestCallersLengths(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	decide(t, d, predicted)
	leg := func(body []byte, session string) (*Leg, predict.Class) {
		t.Helper()
		r := asked(t, d, body)
		r.Session = []byte(session)
		l := wanted(t, d, r)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.record(l.spare())
		return l, l.class()
	}
	with := func(bytes int, more string) []byte {
		body := chat(bytes)
		return append(body[:len(body)-1], more+"}"...)
	}
	base, c := leg(with(900, ""), "")
	defer base.giveBack()
	if c.Model != base.model.hash || c.Model == 0 || c.Caller == 0 || c.Session != 0 || c.Bound != 0 {
		t.Errorf("%+v", c)
	}
	longer, other := leg(with(1800, `,"max_tokens":77`), "s")
	defer longer.giveBack()
	if other.Caller != c.Caller || other.Session == 0 || other.Bound != 77 || other.Model != c.Model {
		t.Errorf("%+v", other)
	}
	another, third := leg([]byte(strings.Replace(string(chat(900)), "be brief", "be long and detailed", 1)), "s")
	defer another.giveBack()
	if third.Caller == c.Caller || third.Session != other.Session {
		t.Errorf("%+v", third)
	}
	hinted, _ := leg(with(900, `,"max_tokens":500,"nvext":{"agent_hints":{"osl":1234}}`), "")
	defer hinted.giveBack()
	if got := hinted.output(); got != 1234 {
		t.Errorf("%v tokens with a hint", got)
	}
	if got := longer.output(); got != 77 {
		t.Errorf("%v tokens within a bound of 77", got)
	}
	hinted.Work = Prefill
	if got := hinted.output(); got != 0 {
		t.Errorf("%v tokens of a prefill", got)
	}
}

// TestCallersHaveASystemPrompt checks that the caller of a request follows from the whole system
// prompt and nothing else, and without one from the first block.
func TestCallersHaveASystemPrompt(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	decide(t, d, predicted)
	caller := func(messages string) uint64 {
		t.Helper()
		l := wanted(t, d, asked(t, d, []byte(`{"model":"sim","messages":[`+messages+`]}`)))
		defer l.giveBack()
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.record(l.spare())
		return l.class().Caller
	}
	message := func(role, text string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, text) }
	helper, same := message("system", "You are a helpful assistant."), strings.Repeat("x", 100)
	if a, b := caller(helper+","+message("user", "Why?")), caller(helper+","+message("user", same)); a != b || a == 0 {
		t.Errorf("one system prompt, two questions: %x and %x", a, b)
	}
	if a, b := caller(message("system", same+"a")), caller(message("system", same+"b")); a == b || a == 0 || b == 0 {
		t.Errorf("two system prompts with an equal beginning: %x and %x", a, b)
	}
	if a, b := caller(message("user", same+"a")), caller(message("user", same+"b")); a != b || a == 0 {
		t.Errorf("no system prompt, an equal beginning: %x and %x", a, b)
	}
	if a := caller(message("user", "Why?")); a != 0 {
		t.Errorf("a short prompt: %x", a)
	}
}

// TestPartsTeachNoLength checks that the length of an answer is learned, and that of a part is not:
// of a prefill's answer, and of the rest of an answer that another node began.
func TestPartsTeachNoLength(t *testing.T) {
	for _, q := range []Question{{}, {Work: Prefill}, {Continues: true}} {
		d := foreseeing(t, 1)
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		class := l.class()
		before := d.forecasts.lengths.Expected(&class)
		l.Question = q
		l.lengthCame(l.spare(), 2)
		learned := d.forecasts.lengths.Expected(&class) != before
		compared := sumOf(t, d, "cgn_router_expected_length_error_tokens") != 0
		if whole := q.Work == Answer && !q.Continues; learned != whole || compared != whole {
			t.Errorf("%+v: learned %v, compared %v", q, learned, compared)
		}
		l.giveBack()
	}
}

// TestHintsLeaveTheBlocksWhole checks that an answer's blocks and its prompt's count until the end
// in mode predicted, whatever length the client expects.
func TestHintsLeaveTheBlocksWhole(t *testing.T) {
	d := dispatcherOf(t, 1)
	decide(t, d, `{"mode":"predicted","cost":{"track_output_blocks":true}}`)
	body := chat(6400)
	l := wanted(t, d, asked(t, d, append(body[:len(body)-1], `,"nvext":{"agent_hints":{"osl":32}}}`...)))
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.now = l.spare()
	book, data := &l.now.member.rank.Book, []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	prompt := book.Blocks()
	for range 33 { // as long as expected, and longer
		l.Event(sse.Event{Data: data, Raw: data}, time.Now())
	}
	if got := book.Blocks(); l.Request.ExpectedOutput() != 32 || prompt == 0 || got != prompt+3 {
		t.Errorf("%v blocks after 33 tokens, %v before", got, prompt)
	}
}

// TestARetryIsForecast checks that a retry is forecast for its own node, and that only that node's
// answer teaches.
func TestARetryIsForecast(t *testing.T) {
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	dead, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	d := still(t, Options{Limits: Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute}, MaxNodes: 2},
		fleet.Backend{URL: dead.URL(), ID: "dead", Model: "sim"}, fleet.Backend{URL: e.URL(), ID: "live", Model: "sim"})
	decide(t, d, predicted)
	for _, m := range d.current().models["sim"].pools[Answer].members {
		if m.node.ID == "live" {
			m.rank.AcquireAlways() // the dead node is cheaper
			defer m.rank.Release()
		}
	}
	place := answer.Memory{Limit: 1 << 20}
	body := chat(500)
	body = append(body[:len(body)-1], `,"stream":true,"max_tokens":3}`...)
	l := d.Leg(asked(t, d, body), Question{}, &place)
	if err := l.Do(); err != nil || l.NodeID() != "live" || l.Attempts != 2 {
		t.Fatalf("%v, %s after %d attempts", err, l.NodeID(), l.Attempts)
	}
	if f := &l.now.forecast.first; f.Wait != 0 || f.Ahead != 0 || f.Expected == 0 {
		t.Errorf("%+v", f)
	}
	l.Finish(relay.Complete)
	for id, want := range map[string]int{"dead": 0, "live": 1} {
		if firsts, _ := taught(speedsOf(d, id)); firsts != want {
			t.Errorf("%s: %d first tokens", id, firsts)
		}
	}
	for _, r := range ranksOf(d.fleet.Load().Nodes) {
		if !r.Book.Empty() || r.Book.Backlog(time.Now()) != 0 {
			t.Errorf("%s: something is left", r.Name)
		}
	}
}

// TestExpectedCostIsExplained checks the rows of an explanation, and its reason.
func TestExpectedCostIsExplained(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	d.log = slog.New(slog.DiscardHandler)
	decide(t, d, `{"mode":"predicted","predicted":{"first":1}}`)
	now := time.Now()
	r := rehearsed(t, d, 400, now)
	e, err := d.explain(asked(t, d, chat(640)), Question{}, now)
	if err != nil || e.Mode != "predicted" || e.Winner == r.Node().ID ||
		!strings.HasPrefix(e.Why, "lowest expected cost ") {
		t.Fatalf("%+v, %v", e, err)
	}
	for _, c := range e.Candidates {
		want := 0.0
		if c.Node == r.Node().ID {
			want = unlearned(400)
		}
		if c.Expected == nil || math.Abs(c.Expected.Wait-want) > 1e-6 || c.Cost != nil || c.ScoreTerms != nil ||
			!strings.HasPrefix(c.Formula, "Formula for "+c.Node+": ") {
			t.Errorf("%+v", c)
		}
	}
	r.Finish(reported(100, 0), now)
}

// TestLastAnswersAreExplained checks that a row has the expected and the real time of the node's
// last answer, also if the policy learns nothing from it.
func TestLastAnswersAreExplained(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	d.log = slog.New(slog.DiscardHandler)
	decide(t, d, `{"mode":"predicted","predicted":{"learn":false}}`)
	now := time.Now()
	rows := func(node string, later time.Duration) (own, other *LastAnswer) {
		t.Helper()
		e, err := d.explain(asked(t, d, chat(640)), Question{}, now.Add(later))
		if err != nil || len(e.Candidates) != 2 {
			t.Fatalf("%+v, %v", e, err)
		}
		for _, c := range e.Candidates {
			if c.Node == node {
				own = c.Last
			} else {
				other = c.Last
			}
		}
		return own, other
	}
	r := rehearsed(t, d, 400, now)
	node, expected := r.Node().ID, r.Expected().Seconds()
	if own, other := rows(node, 0); own != nil || other != nil {
		t.Errorf("before an answer: %+v, %+v", own, other)
	}
	r.Begun(now.Add(250 * time.Millisecond))
	r.Finish(reported(100, 0), now.Add(time.Second))
	own, other := rows(node, 3250*time.Millisecond)
	if own == nil || other != nil || math.Abs(own.Expected-expected) > 1e-6 || math.Abs(own.Real-0.25) > 1e-6 ||
		math.Abs(own.Age-3) > 1e-6 {
		t.Errorf("%+v, want %v expected, 0.25 s, 3 s ago; the other node: %+v", own, expected, other)
	}
	decide(t, d, `{"mode":"score"}`)
	if own, _ := rows(node, 0); own != nil {
		t.Errorf("in mode score: %+v", own)
	}
}

// TestHeldAnswers checks that a request for which the engine has no slot teaches nothing about
// prefill. Its tokens do teach.
func TestHeldAnswers(t *testing.T) {
	d := still(t, Options{})
	now := time.Now()
	d.fleet.Beat(now, &cluster.NodeHealth{
		NodeID: "a", Address: "http://10.0.0.1:1", Models: []string{"sim"}, Ready: true, EngineSlots: 2,
	})
	decide(t, d, predicted)
	n := d.current().models["sim"].pools[Answer].members[0]
	var all []Rehearsal
	for range 3 {
		all = append(all, rehearsed(t, d, 50, now))
	}
	for i, r := range all {
		r.Begun(now.Add(9 * time.Second))
		r.Generated(33, now.Add(10*time.Second))
		if firsts, gaps := taught(n.engine); firsts != min(i+1, 2) || gaps != i+1 {
			t.Errorf("after answer %d: %d first tokens, %d gaps", i, firsts, gaps)
		}
	}
	for _, r := range all {
		r.Finish(reported(800, 0), now.Add(11*time.Second))
	}
}

// TestTargetsReachThePick checks that the targets of a request count, and those of the policy for
// what the request leaves open.
func TestTargetsReachThePick(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	decide(t, d, `{"mode":"predicted","ttft_slo_ms":1}`)
	late := func(nvext string) float64 {
		t.Helper()
		body := chat(100)
		r := asked(t, d, append(body[:len(body)-1], nvext+"}"...))
		e, err := d.Explain(r, Question{})
		if err != nil {
			t.Fatal(err)
		}
		return e.Candidates[0].Expected.Late
	}
	const easy, hard = `,"nvext":{"router":{"ttft_target":60000}}`,
		`,"nvext":{"router":{"ttft_target":60000,"itl_target":0.1}}`
	if a, b, c := late(""), late(easy), late(hard); a == 0 || b != 0 || c == 0 {
		t.Errorf("%v s late by the policy's target, %v s and %v s by the request's", a, b, c)
	}
}
