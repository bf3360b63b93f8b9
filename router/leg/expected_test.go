package leg

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
)

// foreseeing returns a dispatcher in mode predicted over nodes a, b, c and so on, whose servers do
// not run.
func foreseeing(t testing.TB, nodes int) *Dispatcher {
	t.Helper()
	var all []fleet.Backend
	for i := range nodes {
		id := string(rune('a' + i))
		all = append(all, fleet.Backend{URL: fmt.Sprintf("http://10.0.0.%d:1", i+1), ID: id, Model: "sim"})
	}
	d := still(t, Options{}, all...)
	p := policy.Default()
	p.Mode = policy.Predicted
	d.policy.Store(p)
	return d
}

// engines returns the engine of each node of model sim, by the node's id.
func engines(d *Dispatcher) map[string]*predict.Engine {
	all := map[string]*predict.Engine{}
	for _, m := range d.current().models["sim"].pools[Answer].members {
		all[m.node.ID] = m.engine
	}
	return all
}

// teach lets each engine answer n prompts at now, in so many times the expected time of its kind.
func teach(d *Dispatcher, now time.Time, n int, times map[string]float64) {
	for range n {
		for id, e := range engines(d) {
			if times[id] == 0 {
				continue
			}
			f := predict.First{Work: predict.Prompt(2000, 0), Step: 0.01}
			s := predict.Speed{Rates: e.Kind().Rates(), PrefillFactor: 1, DecodeFactor: 1}
			typical := s
			typical.Forecast(&f)
			took := f.Expected * times[id]
			s = e.Speed()
			s.Forecast(&f)
			e.LearnFirst(&f, took, now)
		}
	}
}

// ratios returns the slowdowns that the metrics have.
func ratios(d *Dispatcher, now time.Time) map[string]float64 {
	all := map[string]float64{}
	d.Slowdowns(now, func(node, part string, ratio float64) { all[node+" "+part] = ratio })
	return all
}

// TestSlowdowns checks that nodes are compared with their like, and only by enough recent answers.
func TestSlowdowns(t *testing.T) {
	d, now := foreseeing(t, 3), time.Unix(1_700_000_000, 0)
	teach(d, now, paceMin-1, map[string]float64{"a": 1, "b": 1, "c": 4})
	if all := ratios(d, now); len(all) != 0 {
		t.Errorf("after %d answers: %v", paceMin-1, all)
	}
	teach(d, now, 7*paceMin, map[string]float64{"a": 1, "b": 1, "c": 4})
	all := ratios(d, now)
	if math.Abs(all["c prefill"]-4) > 1 || math.Abs(all["a prefill"]-1) > 0.1 || len(all) != 3 {
		t.Errorf("%v, want a and b as their like, and c four times slower", all)
	}
	if all := ratios(d, now.Add(paceFor+time.Second)); len(all) != 0 {
		t.Errorf("%v long after the last answer", all)
	}
	for range paceMin {
		engines(d)["b"].LearnGaps(&predict.Gaps{Tokens: 32, Seconds: 3, Requests: 1}, now)
	}
	if all := ratios(d, now); all["b decode"] != 0 || all["a decode"] != 0 || all["b prefill"] == 0 {
		t.Errorf("%v, want no decode, because only one node has taught it", all)
	}

	slow := foreseeing(t, 2) // all of them are slower than the start values
	teach(slow, now, paceMin, map[string]float64{"a": 6, "b": 6})
	for name, ratio := range ratios(slow, now) {
		if math.Abs(ratio-1) > 0.1 {
			t.Errorf("%s is at %v, and all nodes are as slow", name, ratio)
		}
	}
}

// linesOf returns the messages of a log of JSON records, with their nodes.
func linesOf(t *testing.T, log *bytes.Buffer) (all []string) {
	t.Helper()
	for line := range bytes.Lines(log.Bytes()) {
		var rec struct {
			Level, Msg, Node string
			Ratio            float64 `json:"prefill_ratio"`
			Answers          int     `json:"prefill_answers"`
		}
		if err := json.Unmarshal(line, &rec); err != nil || rec.Answers < paceMin {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, fmt.Sprint(rec.Level, " ", rec.Msg, " ", rec.Node, " ", rec.Ratio > slowUntil))
	}
	return all
}

const (
	toldSlow = "WARN node is slower than nodes of its kind c true"
	toldFast = "INFO node is as fast as nodes of its kind again c false"
)

// TestSlowNodesAreTold checks that the dispatcher's goroutine logs each change of a node's speed
// once, and at most once in a minute.
func TestSlowNodesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := foreseeing(t, 3)
		var log bytes.Buffer
		d.log = slog.New(slog.NewJSONHandler(&log, nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		even := map[string]float64{"a": 1, "b": 1, "c": 1}
		after := func(d2 time.Duration, n int, times map[string]float64, want ...string) {
			t.Helper()
			teach(d, time.Now(), n, times)
			time.Sleep(d2)
			synctest.Wait()
			if got := linesOf(t, &log); !slices.Equal(got, want) {
				t.Fatalf("%q, want %q", got, want)
			}
		}
		after(2*time.Second, 64, even)
		after(2*time.Second, 8, map[string]float64{"a": 1, "b": 1, "c": 5}, toldSlow)
		after(50*time.Second, 64, even, toldSlow)           // less than a minute
		after(10*time.Second, 1, even, toldSlow, toldFast)  // at a minute
		after(10*time.Minute, 64, even, toldSlow, toldFast) // nothing new
		after(2*time.Second, 16, map[string]float64{"a": 1, "b": 1, "c": 5}, toldSlow, toldFast, toldSlow)
		after(20*time.Minute, 0, nil, toldSlow, toldFast, toldSlow) // no answer says that it is fast again
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowNodesStaySlowWithoutEvidence checks that the log calls a slow node fast again only after
// an answer of its slow part has been compared with other nodes'.
func TestSlowNodesStaySlowWithoutEvidence(t *testing.T) {
	even, slow := map[string]float64{"a": 1, "b": 1, "c": 1}, map[string]float64{"a": 1, "b": 1, "c": 5}
	steps := func(d *Dispatcher, ids ...string) { // all are as fast with them
		for range paceMin {
			for _, id := range ids {
				engines(d)[id].LearnGaps(&predict.Gaps{Tokens: 32, Seconds: 1, Requests: 1}, time.Now())
			}
		}
	}
	for name, meanwhile := range map[string]func(d *Dispatcher){
		"only its steps are compared": func(d *Dispatcher) { steps(d, "a", "b", "c") },
		"nobody else answers":         func(d *Dispatcher) { teach(d, time.Now(), 1, map[string]float64{"c": 5}) },
		"others answer": func(d *Dispatcher) {
			teach(d, time.Now(), 1, map[string]float64{"a": 1, "b": 1})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := foreseeing(t, 3)
			var log bytes.Buffer
			d.log = slog.New(slog.NewJSONHandler(&log, nil))
			look := func(when string, want ...string) {
				t.Helper()
				d.noteSlow(time.Now())
				if got := linesOf(t, &log); !slices.Equal(got, want) {
					t.Fatalf("%s, %s: %q, want %q", name, when, got, want)
				}
			}
			teach(d, time.Now(), 64, even)
			teach(d, time.Now(), 8, slow)
			look("slow", toldSlow)
			for range 60 {
				time.Sleep(30 * time.Second)
				meanwhile(d)
				look("meanwhile", toldSlow)
			}
			teach(d, time.Now(), 64, even)
			time.Sleep(time.Second)
			look("fast", toldSlow, toldFast)
		})
	}
}

// TestSlowNotesAreNew checks that a node is shown as fast at once, although the log waits a minute
// before it says so.
func TestSlowNotesAreNew(t *testing.T) {
	d, now := foreseeing(t, 3), time.Now()
	var log bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&log, nil))
	even := map[string]float64{"a": 1, "b": 1, "c": 1}
	teach(d, now, 64, even)
	teach(d, now, 8, map[string]float64{"a": 1, "b": 1, "c": 5})
	d.noteSlow(now)
	now = now.Add(time.Second)
	teach(d, now, 64, even)
	d.noteSlow(now)
	if c := d.Speeds(now)["c"]; c.Slow != "" || c.Prefill.Slowdown > 1.5 || len(linesOf(t, &log)) != 1 {
		t.Errorf("%+v", c)
	}
	d.noteSlow(now.Add(slowEvery))
	if got := linesOf(t, &log); !slices.Equal(got, []string{toldSlow, toldFast}) {
		t.Errorf("%q", got)
	}
}

// TestAGoneEngineIsNotFastAgain checks that the log says nothing when a slow engine is dropped, and
// says it when the node's next engine is slow.
func TestAGoneEngineIsNotFastAgain(t *testing.T) {
	d, now := foreseeing(t, 3), time.Now()
	even, slow := map[string]float64{"a": 1, "b": 1, "c": 1}, map[string]float64{"a": 1, "b": 1, "c": 5}
	var log bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&log, nil))
	teach(d, now, 64, even)
	teach(d, now, 8, slow)
	d.noteSlow(now)
	n := d.table.Load().models["sim"].pools[Answer].members[2].node
	for key, e := range n.engines {
		n.engines[key] = predict.NewEngine(e.Kind())
		d.table.Load().models["sim"].pools[Answer].members[2].engine = n.engines[key]
	}
	now = now.Add(2 * slowEvery)
	teach(d, now, 32, even)
	d.noteSlow(now)
	if got := linesOf(t, &log); !slices.Equal(got, []string{toldSlow}) {
		t.Errorf("%q after another engine's answers", got)
	}
	teach(d, now, 8, slow)
	d.noteSlow(now)
	if got := linesOf(t, &log); !slices.Equal(got, []string{toldSlow, toldSlow}) {
		t.Errorf("%q when the other engine is slow", got)
	}
}

// TestANodeWithoutLike checks that a node that is alone in its kind is compared with nothing.
func TestANodeWithoutLike(t *testing.T) {
	d, now := foreseeing(t, 1), time.Now()
	teach(d, now, 300, map[string]float64{"a": 1})
	teach(d, now, 8, map[string]float64{"a": 5})
	d.noteSlow(now)
	if s := d.Speeds(now); len(s)+len(ratios(d, now)) != 0 {
		t.Errorf("%+v", s["a"])
	}
	e, fail := d.explain(asked(t, d, chat(6400)), pinnedTo("a"), now)
	if fail != nil {
		t.Fatal(fail)
	}
	if p := e.Candidates[0].Speed.Prefill; p.Slowdown != 0 || p.Answers < 290 || p.Factor < 2 {
		t.Errorf("%+v, want a changed factor and no slowdown", p)
	}
}

// TestSlowNodesAreNamed checks what people are told of nodes that are slower than their like.
func TestSlowNodesAreNamed(t *testing.T) {
	d, now := foreseeing(t, 3), time.Now()
	teach(d, now, 64, map[string]float64{"a": 1, "b": 1, "c": 1})
	teach(d, now, 8, map[string]float64{"a": 1, "b": 1, "c": 1.7})
	d.noteSlow(now)
	for id, s := range d.Speeds(now) {
		if s.Prefill.Slowdown == 0 || s.Decode != (NodePace{}) || s.Slow != "" {
			t.Errorf("%s: %+v, and it is not slow", id, s)
		}
	}
	teach(d, now, 8, map[string]float64{"a": 1, "b": 1, "c": 5})
	d.noteSlow(now)
	all := d.Speeds(now)
	if want := fmt.Sprintf("prefill %.1fx its like", all["c"].Prefill.Slowdown); all["c"].Slow != want ||
		all["a"].Slow+all["b"].Slow != "" {
		t.Errorf("%q, %q and %q, want c with %q", all["a"].Slow, all["b"].Slow, all["c"].Slow, want)
	}
	for range 2 * paceMin {
		for id, e := range engines(d) {
			seconds := 1.0
			if id == "c" {
				seconds = 4
			}
			e.LearnGaps(&predict.Gaps{Tokens: 32, Seconds: seconds, Requests: 1}, now)
		}
	}
	d.noteSlow(now)
	if got := d.Speeds(now)["c"].Slow; !strings.Contains(got, "x its like; decode ") {
		t.Errorf("%q, want both parts", got)
	}
}

// TestSlowUntilEachPartIsFast checks that a node whose slow part is fast again stays slow while the
// other part is a little slow.
func TestSlowUntilEachPartIsFast(t *testing.T) {
	d, now := foreseeing(t, 3), time.Now()
	var log bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&log, nil))
	even := map[string]float64{"a": 1, "b": 1, "c": 1}
	teach(d, now, 64, even)
	teach(d, now, 8, map[string]float64{"a": 1, "b": 1, "c": 5})
	d.noteSlow(now)
	steps := func(seconds float64) {
		for range 100 {
			for id, e := range engines(d) {
				took := 1.0
				if id == "c" {
					took = seconds
				}
				e.LearnGaps(&predict.Gaps{Tokens: 32, Seconds: took, Requests: 1}, now)
			}
		}
	}
	now = now.Add(2 * slowEvery)
	steps(1.75)
	teach(d, now, 64, even)
	d.noteSlow(now)
	c := d.Speeds(now)["c"]
	if r := c.Decode.Slowdown; r < slowUntil || r >= slowFrom || c.Slow != fmt.Sprintf("decode %.1fx its like", r) {
		t.Errorf("%+v, want slow steps", c)
	}
	now = now.Add(time.Second)
	steps(1)
	d.noteSlow(now)
	if c := d.Speeds(now)["c"]; c.Slow != "" {
		t.Errorf("%+v", c)
	}
	if got := linesOf(t, &log); !slices.Equal(got, []string{toldSlow, toldFast}) {
		t.Errorf("%q", got)
	}
}

// TestSpeedsAreExplained checks that an explanation has what is known about each node's speed, in
// mode predicted and while rates are learned.
func TestSpeedsAreExplained(t *testing.T) {
	d := foreseeing(t, 3)
	now := time.Now()
	teach(d, now.Add(-time.Minute), 64, map[string]float64{"a": 1, "b": 1, "c": 1})
	teach(d, now.Add(-time.Minute), 8, map[string]float64{"a": 1, "b": 1, "c": 4}) // c has changed
	rows := func() map[string]ExplainedNode {
		t.Helper()
		e, fail := d.explain(asked(t, d, chat(6400)), pinnedTo("b"), now)
		if fail != nil {
			t.Fatal(fail)
		}
		all := map[string]ExplainedNode{}
		for _, c := range e.Candidates {
			all[c.Node] = c
		}
		return all
	}
	all := rows()
	for _, id := range []string{"a", "b", "c"} { // also those that are no candidates
		if all[id].Speed == nil || (all[id].Expected != nil) != (id == "b") {
			t.Fatalf("%s: %+v", id, all[id])
		}
	}
	c := all["c"].Speed
	if p := c.Prefill; p.Answers < 64 || p.Age == nil || math.Abs(*p.Age-60) > 1e-6 || p.Slowdown < 2.5 ||
		p.Factor < 2.5 || c.Tried {
		t.Errorf("%+v, want a slow node that cannot be tried, for it is no candidate", p)
	}
	if p := c.Decode; p != (NodePace{Factor: 1}) {
		t.Errorf("%+v, want that nothing is known", p)
	}
	set := func(change func(p *policy.Policy)) {
		p := *d.policy.Load()
		change(&p)
		d.policy.Store(&p)
	}
	set(func(p *policy.Policy) { p.Predicted.Learn = false })
	if c := rows()["c"]; c.Speed != nil {
		t.Errorf("%+v without learning", c.Speed)
	}
	set(func(p *policy.Policy) { p.Predicted.Learn, p.Mode = true, policy.Score })
	if c := rows()["c"]; c.Speed != nil {
		t.Errorf("%+v in mode score", c.Speed)
	}
}

// TestErrorsOfForecastsAreCounted checks the metrics of expected times and lengths, and that they
// stay as they are in another mode.
func TestErrorsOfForecastsAreCounted(t *testing.T) {
	d, now := foreseeing(t, 2), time.Unix(1_700_000_000, 0)
	count := func(name string) float64 {
		t.Helper()
		page := metricsPage(d)
		var n float64
		for line := range strings.Lines(page) {
			if rest, ok := strings.CutPrefix(line, name+`_count{model="sim"} `); ok {
				fmt.Sscan(rest, &n)
			}
		}
		return n
	}
	answered := func() (expected, took time.Duration, output float64) {
		t.Helper()
		keys := make([]uint64, 100)
		for i := range keys {
			keys[i] = d.o.Random()
		}
		r, err := d.Rehearse(Piece{Keys: keys, MaxTokens: 512}, now)
		if err != nil {
			t.Fatal(err)
		}
		expected, took, output = r.Expected(), 400*time.Millisecond, r.l.now.forecast.output
		r.Begun(now.Add(took))
		used := reported(1600, 0)
		used.Completion, used.HasCompletion = 100, true
		r.Finish(used, now.Add(2*time.Second))
		now = now.Add(3 * time.Second)
		return expected, took, output
	}
	expected, took, output := answered()
	off := (expected - took).Seconds()
	for name, want := range map[string]float64{
		"cgn_router_expected_ttft_error_seconds":  off,
		"cgn_router_expected_ttft_error_ratio":    math.Abs(off) / took.Seconds(),
		"cgn_router_expected_length_error_tokens": output - 100,
	} {
		if n, sum := count(name), sumOf(t, d, name); n != 1 || math.Abs(sum-want) > 1e-6 || want == 0 {
			t.Errorf("%s: %v values with the sum %v, want %v", name, n, sum, want)
		}
	}
	p := policy.Default()
	p.Mode = policy.Score
	d.policy.Store(p)
	answered()
	if n := count("cgn_router_expected_ttft_error_seconds") + count("cgn_router_expected_length_error_tokens"); n != 2 {
		t.Errorf("%v values after an answer in mode score, want 2", n)
	}
}

// TestKnownWaitsAreForecast checks that a forecast, and its metric, have the wait for a slot that
// the pick counted, and that this wait is not learned from.
func TestKnownWaitsAreForecast(t *testing.T) {
	now := time.Now()
	d, told := joined(t, 1, 0, now)
	told["node-0"].EngineSlots = 2
	d.fleet.Beat(now, told["node-0"])
	decide(t, d, predicted)
	n := d.current().models["sim"].pools[Answer].members[0]
	for range 2 {
		defer rehearsed(t, d, 50, now).Finish(reported(800, 0), now)
	}
	e, err := d.explain(asked(t, d, chat(1600)), Question{}, now)
	if err != nil {
		t.Fatal(err)
	}
	l := d.Leg(asked(t, d, chat(1600)), Question{}, nil)
	defer l.giveBack()
	l.began = now
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	a := l.spare()
	f, want := &a.forecast, e.Candidates[0].Expected
	if f.ttft != want.First || f.wait != want.Wait || f.step != want.Step || f.ttft < f.first.Expected+0.1 {
		t.Errorf("%+v, want the pick's %+v", f, want)
	}
	a.sent, l.Request.Scan.Stream = now, true
	l.firstCame(a, now.Add(4*time.Second))
	if sum := sumOf(t, d, "cgn_router_expected_ttft_error_seconds"); math.Abs(sum-(f.ttft-4)) > 1e-6 {
		t.Errorf("an error of %v s, want %v s", sum, f.ttft-4)
	}
	if firsts, _ := taught(n.engine); firsts != 0 {
		t.Errorf("%d first tokens have taught", firsts)
	}
}

// TestAnswersAreComparedWithForecasts checks the time that was expected of a streamed answer, and
// its record in the log.
func TestAnswersAreComparedWithForecasts(t *testing.T) {
	d := start(t, 1)
	var log bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for mode, streams := range map[string]bool{"score": true, "predicted": false} {
		decide(t, d, fmt.Sprintf(`{"mode":%q}`, mode))
		if l, _ := compared(t, d, &log, streams); l != 0 || strings.Contains(log.String(), "forecast") {
			t.Errorf("mode %s, stream %v: %v expected, %s", mode, streams, l, log.String())
		}
	}
	decide(t, d, `{"mode":"predicted"}`)
	expected, ttft := compared(t, d, &log, true)
	var rec struct {
		Msg, Request, Model, Node string
		Expected                  float64 `json:"expected_ttft_ms"`
		TTFT                      float64 `json:"ttft_ms"`
		Step                      float64 `json:"expected_itl_ms"`
		Tokens                    float64 `json:"expected_tokens"`
	}
	records := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	if err := json.Unmarshal(records[len(records)-1], &rec); err != nil {
		t.Fatal(err)
	}
	if rec.Msg != "answer compared with its forecast" || rec.Request != "req-9" || rec.Model != "sim" ||
		rec.Node == "" || rec.Expected <= 0 || rec.TTFT <= 0 || rec.Step <= 0 || rec.Tokens <= 0 {
		t.Errorf("%+v", rec)
	}
	// Both count from the arrival, and the record's times from the sending.
	if expected.Seconds()*1000 < rec.Expected-0.1 || ttft.Seconds()*1000 < rec.TTFT-0.1 {
		t.Errorf("%v expected, %v came, %+v", expected, ttft, rec)
	}
}

// compared asks for an answer, and returns the expected and the real time to the first token.
func compared(t *testing.T, d *Dispatcher, log *bytes.Buffer, streams bool) (expected, ttft time.Duration) {
	t.Helper()
	log.Reset()
	body := chat(400)
	if streams {
		body = append(body[:len(body)-1], `,"stream":true}`...)
	}
	r := asked(t, d, body)
	r.ID = []byte("req-9")
	l := d.Leg(r, Question{}, place(func(ex *relay.Exchange) error { ex.Close(); return nil }))
	if err := l.Do(); err != nil {
		t.Fatal(err)
	}
	expected, ttft = l.ExpectedTTFT(), l.TTFT
	l.Finish(relay.Complete)
	return expected, ttft
}
