package leg

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestRanksAreForeseen checks that the ranks of a node have their own load, and share the speed of
// the engine.
func TestRanksAreForeseen(t *testing.T) {
	d := still(t, Options{}, twoRanked()[:1]...)
	decide(t, d, predicted)
	now := time.Now()
	first := rehearsed(t, d, 200, now)
	second := rehearsed(t, d, 200, now)
	if first.l.now.member.rank == second.l.now.member.rank || second.l.now.forecast.first.Wait != 0 {
		t.Errorf("the second prompt waits for %v s", second.l.now.forecast.first.Wait)
	}
	if first.l.now.member.engine != second.l.now.member.engine {
		t.Error("each rank has a speed of its own")
	}
	third := rehearsed(t, d, 10, now)
	if f := &third.l.now.forecast.first; f.Ahead != 1 || math.Abs(f.Wait-unlearned(200)) > 1e-6 {
		t.Errorf("%+v", f)
	}
	for _, r := range []Rehearsal{first, second, third} {
		r.Begun(now)
		r.Finish(reported(100, 0), now)
	}
	if firsts, _ := taught(speedsOf(d, "a")); firsts != 0 { // an answer at once is none
		t.Errorf("%d first tokens", firsts)
	}
	noneLeft(t, d.fleet.Load().Nodes)
}

// TestModelsAndAdapters checks that a node has rates for each model, and that an adapter has those
// of its base.
func TestModelsAndAdapters(t *testing.T) {
	d := start(t, 2, func(c *engine.Config) { c.Models = []string{"sim", "other"} })
	models := map[string]*cluster.Model{"tuned": {Base: "sim"}, "more": {Base: "sim"}, "else": {Base: "other"}}
	if err := d.fleet.SetModels(t.Context(), models); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return d.current().models["tuned"] != nil })
	decide(t, d, predicted)
	of := func(model string, place int) *predict.Engine {
		t.Helper()
		m := d.current().models[model]
		if m == nil {
			t.Fatalf("%s is not served", model)
		}
		return m.pools[Answer].members[place].engine
	}
	for place := range 2 {
		if of("tuned", place) != of("sim", place) || of("more", place) != of("sim", place) ||
			of("else", place) != of("other", place) || of("sim", place) == of("other", place) {
			t.Errorf("place %d", place)
		}
	}
	if of("sim", 0) == of("sim", 1) || of("sim", 0).Kind() != of("sim", 1).Kind() ||
		of("sim", 0).Kind() == of("other", 0).Kind() {
		t.Error("wrong kinds")
	}
	if len(d.forecasts.kinds) != 2 {
		t.Errorf("%d kinds", len(d.forecasts.kinds))
	}
}

// TestLearningSurvivesChanges checks that a new snapshot of the fleet, and a node that leaves and
// comes back, keep what their kind has learned, and take no further memory.
func TestLearningSurvivesChanges(t *testing.T) {
	d, o := deafOf(t, 3, nil)
	decide(t, d, predicted)
	e, kind := speedsOf(d, "node-1"), speedsOf(d, "node-1").Kind()
	for range 100 {
		s := e.Speed()
		f := predict.First{Work: predict.Prompt(1000, 0)}
		s.Forecast(&f)
		e.LearnFirst(&f, 1, time.Now())
	}
	taught := *kind.Rates()
	all := o.Backends
	for i := range 30 {
		o.Backends = slices.Clone(all)
		if o.Backends[0].Labels = []string{fmt.Sprint("n=", i)}; i%3 == 1 {
			o.Backends = o.Backends[:2] // node-2 leaves
		}
		if err := d.fleet.Configure(context.Background(), o.Backends, nil); err != nil {
			t.Fatal(err)
		}
		if got := speedsOf(d, "node-1"); got != e {
			t.Fatal("a change of other nodes begins anew")
		}
		if n := speedsOf(d, "node-2"); (n == nil) != (i%3 == 1) || n != nil && n.Kind() != kind {
			t.Fatalf("change %d: node-2 is not of its kind", i)
		}
	}
	if *kind.Rates() != taught || len(d.forecasts.kinds) != 1 {
		t.Errorf("%d kinds, %+v", len(d.forecasts.kinds), *kind.Rates())
	}
	for _, n := range d.current().nodes {
		if len(n.engines) != 1 {
			t.Errorf("%s has %d engines", n.ID, len(n.engines))
		}
	}
}

// TestKindsFollowFacts checks that engines of another type, dtype, width, device or GPU model are
// of another kind, also if a node tells its facts late.
func TestKindsFollowFacts(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	const ready = `"ready":true,"heartbeat_s":300,`
	facts := map[string]string{
		"a": `"engine":"vllm","dtype":"bf16","tp":1`, "b": `"engine":"vllm","dtype":"bf16","tp":1`,
		"c": `"engine":"sglang","dtype":"bf16","tp":1`, "d": `"engine":"vllm","dtype":"fp8","tp":1`,
		"e": `"engine":"vllm","dtype":"bf16","tp":2`, "f": `"engine":"vllm","dtype":"bf16","tp":1,"device":"cpu"`,
		"g": `"engine":"vllm","dtype":"bf16","tp":1,"vram_bytes":85899345920`,
		"h": `"engine":"vllm","dtype":"bf16","tp":1,"vram_bytes":85899345920,"gpu_model":"NVIDIA A100-SXM4-80GB"`,
		"i": `"engine":"vllm","dtype":"bf16","tp":1,"vram_bytes":85899345920,"gpu_model":"NVIDIA H100 80GB HBM3"`,
	}
	for id, more := range facts {
		d.put(id, e.URL(), ready+more)
	}
	waitFor(t, func() bool { return len(d.current().nodes) == len(facts) })
	kinds := map[*predict.Kind]string{}
	for id := range facts {
		kinds[speedsOf(d.Dispatcher, id).Kind()] += id
	}
	if speedsOf(d.Dispatcher, "a").Kind() != speedsOf(d.Dispatcher, "b").Kind() || len(kinds) != len(facts)-1 {
		t.Errorf("%v", kinds)
	}
	d.put("b", e.URL(), ready+`"engine":"vllm","dtype":"fp8","tp":1`)
	waitFor(t, func() bool { // of its new kind
		return speedsOf(d.Dispatcher, "b").Kind() == speedsOf(d.Dispatcher, "d").Kind()
	})
}

// TestLoadedAdapters checks that a request for an adapter that the engine loads first teaches
// nothing about prefill, and that the load counts in its pick.
func TestLoadedAdapters(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	d.put("a", e.URL(), `"ready":true,"heartbeat_s":300,"engine":"sglang"`)
	sql := map[string]*cluster.Model{"sql": {Base: "sim", AdapterLoadS: 2}}
	if err := d.fleet.SetModels(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	decide(t, d.Dispatcher, predicted)
	waitFor(t, func() bool { return d.current().models["sql"] != nil && len(d.current().snap.Nodes) == 1 })
	for model, loads := range map[string]bool{"sim": false, "sql": true} {
		l := d.Leg(asked(t, d.Dispatcher, chat(100)), Question{Model: []byte(model)}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		a := l.spare()
		if load := l.picks.times[0].Load; a.forecast.held != loads || loads != (load == 2) {
			t.Errorf("%s: %v s to load, held: %v", model, load, a.forecast.held)
		}
		before, _ := taught(a.member.engine)
		a.sent, l.Request.Scan.Stream = time.Now(), true
		l.firstCame(a, a.sent.Add(time.Second))
		if after, _ := taught(a.member.engine); after > before == loads {
			t.Errorf("%s: %d first tokens after %d", model, after, before)
		}
		l.giveBack()
	}
}

// TestListedAdapters checks an adapter that a node has listed and not loaded, and that has no
// settings. The time to load it is unknown.
func TestListedAdapters(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	for _, id := range []string{"a", "b"} {
		d.put(id, e.URL(), `"ready":true,"heartbeat_s":300,"engine":"vllm","adapter_slots":1,"models":["sim","one","two"],`+
			`"adapters":[{"name":"one","base":"sim"},{"name":"two","base":"sim"}]`)
	}
	decide(t, d.Dispatcher, predicted)
	waitFor(t, func() bool { return d.current().models["one"] != nil && len(d.current().snap.Nodes) == 2 })
	for _, n := range d.current().snap.Nodes {
		n.UseAdapter("two", time.Now())
	}
	l := d.Leg(asked(t, d.Dispatcher, chat(100)), Question{Model: []byte("one")}, nil)
	defer l.giveBack()
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	if l.model.view.Settings != nil || !l.lacksAdapter(l.pool.members[0]) || l.picks.times[0].Load != 0 {
		t.Errorf("lacks it: %v, %v s to load, settings %+v", l.lacksAdapter(l.pool.members[0]),
			l.picks.times[0].Load, l.model.view.Settings)
	}
}
