package leg

import (
	"fmt"
	"log/slog"
	"math"
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
	"github.com/cognitora/dataplane/router/scan"
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

// unlearned is the time of a prompt's prefill, in seconds, before anything was learned.
func unlearned(blocks int) float64 {
	s := predict.Untaught()
	return s.Prefill(predict.Prompt(int64(blocks)*prefix.BlockTokens, 0))
}

// TestTiming checks what a pick knows about a node: its own requests, and those of others.
func TestTiming(t *testing.T) {
	d := still(t, Options{}, twoNodes()[:1]...)
	decide(t, d, predicted)
	now := time.Now()
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

	told := &cluster.NodeHealth{BlockTokens: 32}
	told.Load.InFlight, told.Load.QueueDepth = load.Known(7), load.Known(2)
	told.Load.FreeBlocks, told.Load.TotalBlocks = load.Known(100), load.Known(1100)
	n.node.Beat(told, now)
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
	d := still(t, Options{}, twoNodes()...)
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
		now = now.Add(Every * step)
		r.Generated(1+Every, now)
		r.Finish(usage.Counts{Completion: 33}, now)
	}
	firsts, gaps := 0, 0
	for _, id := range []string{"a", "b"} {
		f, g := speedsOf(d, id).Answers()
		firsts, gaps = firsts+f, gaps+g
	}
	s := speedsOf(d, "a").Speed(now, true)
	if off := s.Decodes*s.Decode(1, 30)/step.Seconds() - 1; firsts != 200 || gaps != 200 || late > 0.1 ||
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

// sent sends a request to the fleet and reads the answer to its end.
func sent(t *testing.T, d *Dispatcher, api scan.API, path, body string) {
	t.Helper()
	r := asked(t, d, chat(1))
	r.Reset()
	r.API, r.Method, r.Path, r.Received = api, "POST", path, time.Now()
	r.Own([]byte(body), nil)
	if err := r.Read(nil, d.where.Memo.Scans()); err != nil {
		t.Fatal(err)
	}
	place := answer.Memory{Limit: 1 << 20}
	l := d.Leg(r, Question{}, &place)
	if err := l.Do(); err != nil || place.Status != 200 {
		t.Fatalf("%v, status %d: %s", err, place.Status, place.Body)
	}
	l.Finish(relay.Complete)
}

// TestRatesOfAnEngine learns from the answers of a simulated engine, which is slower than the start
// values.
func TestRatesOfAnEngine(t *testing.T) {
	const chats = "/v1/chat/completions"
	d := start(t, 1, func(c *engine.Config) {
		c.PrefillTokensPerSecond, c.DecodeStep, c.NoPrefixCache = 1000, 20*time.Millisecond, true
	})
	decide(t, d, predicted)
	e := d.current().models["sim"].pools[Answer].members[0].engine
	text := strings.Repeat("word ", 40)
	for _, c := range []struct {
		api        scan.API
		path, body string
	}{
		{scan.Chat, chats, `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"` + text + `"}]}`},
		{scan.Responses, "/v1/responses", `{"model":"sim","max_output_tokens":40,"stream":true,"input":"` + text + `"}`},
	} {
		sent(t, d, c.api, c.path, c.body)
		if firsts, gaps := e.Answers(); firsts != 0 || gaps != 0 {
			t.Errorf("%s teaches %d first tokens and %d gaps", c.path, firsts, gaps)
		}
	}
	streamed := `{"model":"sim","max_tokens":35,"stream":true,"messages":[{"role":"user","content":"` + text + `"}]}`
	for n, gaps := 1, 0; n < 4 || gaps == 0; n++ { // on a busy host tokens may come together
		sent(t, d, scan.Chat, chats, streamed)
		var firsts int
		if firsts, gaps = e.Answers(); firsts != n || gaps > n || n > 50 {
			t.Fatalf("%d answers teach %d first tokens and %d gaps", n, firsts, gaps)
		}
	}
	now := e.Speed(time.Now(), true)
	was := predict.Untaught()
	if !(now.Prefills*now.Prefill(predict.Prompt(200, 0)) > was.Prefill(predict.Prompt(200, 0)) &&
		now.Decodes*now.Decode(1, 4) > was.Decode(1, 4)) {
		t.Errorf("%+v of %+v", now, *now.Rates)
	}
	c := predict.Class{Model: d.current().models["sim"].hash}
	if got := d.forecasts.lengths.Expected(&c); got > 128 {
		t.Errorf("%v tokens are expected after answers of 3, 40 and 35", got)
	}
	noneLeft(t, d.current().snap.Nodes)
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
		firsts, gaps := e.Answers()
		got := d.forecasts.lengths.Expected(&predict.Class{Model: d.current().models["sim"].hash})
		if firsts+gaps != 0 || math.Abs(got-256) > 1e-6 {
			t.Errorf("%s: %d first tokens, %d gaps, %v tokens of output", mode, firsts, gaps, got)
		}
	}
}

// TestWithoutLearning checks that with learn off all nodes have the start values, and that their
// answers teach no rates.
func TestWithoutLearning(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
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
	was, before := *speedsOf(d, "a").Kind().Rates(), speedsOf(d, "a").Speed(now, false)
	decide(t, d, `{"mode":"predicted","predicted":{"learn":false}}`)
	r := rehearsed(t, d, 50, now)
	s, want := predict.Untaught(), predict.First{Work: predict.Prompt(800, 0)}
	want.Step = s.Decode(0, 0)
	if s.Forecast(&want); math.Abs(r.Expected().Seconds()-want.Expected) > 1e-6 {
		t.Errorf("%v are expected, want %v s", r.Expected(), want.Expected)
	}
	r.Finish(usage.Counts{}, now)
	answers(20)
	if is := speedsOf(d, "a").Speed(now, false); *speedsOf(d, "a").Kind().Rates() != was || is != before {
		t.Errorf("%+v was learned, after %+v", is, before)
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
		_, gaps = a.member.engine.Answers()
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
		if firsts, _ := speedsOf(d, id).Answers(); firsts != want {
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
	decide(t, d, `{"mode":"predicted","predicted":{"first":1,"later":0}}`)
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

// TestHeldAnswers checks that a request for which the engine has no slot teaches nothing about
// prefill. Its tokens do teach.
func TestHeldAnswers(t *testing.T) {
	d := still(t, Options{}, twoNodes()[:1]...)
	decide(t, d, predicted)
	now := time.Now()
	n := d.current().models["sim"].pools[Answer].members[0]
	n.node.Beat(&cluster.NodeHealth{EngineSlots: 2}, now)
	var all []Rehearsal
	for range 3 {
		all = append(all, rehearsed(t, d, 50, now))
	}
	for i, r := range all {
		r.Begun(now.Add(9 * time.Second))
		r.Generated(33, now.Add(10*time.Second))
		if firsts, gaps := n.engine.Answers(); firsts != min(i+1, 2) || gaps != i+1 {
			t.Errorf("after answer %d: %d first tokens, %d gaps", i, firsts, gaps)
		}
	}
	for _, r := range all {
		r.Finish(reported(800, 0), now.Add(11*time.Second))
	}
}

// TestPressure checks the share of the time in which engines compute prompts, and that an
// explanation does not change it.
func TestPressure(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	decide(t, d, predicted)
	m, now := d.current().models["sim"], time.Now()
	r := rehearsed(t, d, 100, now)
	if m.demand.pressure() != 0 {
		t.Errorf("pressure %v of an idle fleet", m.demand.pressure())
	}
	for range 1000 { // one of two computes
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		if l.picks.asked.Pressure != m.demand.pressure() {
			t.Fatalf("a pick by pressure %v, not %v", l.picks.asked.Pressure, m.demand.pressure())
		}
		l.giveBack()
	}
	was := m.demand.pressure()
	if math.Abs(was-1) > 0.01 {
		t.Errorf("pressure %v while one of two engines computes", was)
	}
	r.Begun(now)
	if _, err := d.Explain(asked(t, d, chat(100)), Question{}); err != nil || m.demand.pressure() != was {
		t.Errorf("an explanation changes it to %v, %v", m.demand.pressure(), err)
	}
	r.Finish(reported(100, 0), now)
	for range 2000 {
		m.demand.note([]policy.Timing{{Pressing: 1}})
	}
	if got := m.demand.pressure(); math.Abs(got-busiest/(1-busiest)) > 1e-9 {
		t.Errorf("pressure %v at most", got)
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
