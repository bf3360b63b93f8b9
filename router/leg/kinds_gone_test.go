package leg

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/sim/engine"
)

// configure gives the dispatcher's fleet these nodes and models.
func configure(t *testing.T, d *Dispatcher, nodes []fleet.Backend, models map[string]*cluster.Model) {
	t.Helper()
	if err := d.fleet.Configure(t.Context(), nodes, models); err != nil {
		t.Fatal(err)
	}
	d.current()
}

// TestKindsAreForgotten checks that models that come and go take no memory for ever, and that a
// model that comes back within a day keeps the rates of its kind.
func TestKindsAreForgotten(t *testing.T) {
	d, o := deafOf(t, 2, nil)
	d.current()
	now, kinds, idle := time.Now(), d.forecasts.kinds, d.forecasts.idle
	sims, taught := slices.Clone(o.Backends), speedsOf(d, "node-1").Kind()
	other := slices.Clone(o.Backends)
	for i := range 50 {
		other[0].Model = fmt.Sprint("model-", i)
		configure(t, d, other, nil)
	}
	count := func(when string, wantKinds, wantIdle int) {
		t.Helper()
		if len(kinds) != wantKinds || len(idle) != wantIdle {
			t.Errorf("%s: %d kinds, %d of them without an engine, want %d and %d", when, len(kinds), len(idle),
				wantKinds, wantIdle)
		}
	}
	count("before the sweep", 51, 0)
	d.forgetKinds(now)
	count("after the sweep", 51, 49)
	for _, n := range d.current().nodes {
		if len(n.engines) != 1 {
			t.Errorf("%s has %d engines", n.ID, len(n.engines))
		}
	}
	configure(t, d, sims[:1], nil) // node-1 leaves, and all other models
	d.forgetKinds(now)
	configure(t, d, sims[:0], nil)
	d.forgetKinds(now.Add(time.Hour))
	count("of an empty fleet", 51, 51)
	configure(t, d, sims, nil)
	d.forgetKinds(now.Add(2 * time.Hour))
	count("back", 51, 50)
	if speedsOf(d, "node-1").Kind() != taught {
		t.Error("a kind that is back begins anew")
	}
	d.forgetKinds(now.Add(idleKindFor))
	count("a day later", 1, 0)
	d.forgetKinds(now.Add(3 * idleKindFor))
	if count("while they serve", 1, 0); speedsOf(d, "node-0").Kind() != taught {
		t.Error("a kind with engines begins anew")
	}
}

// TestIdleKindsAreBounded checks that many models within a day push out the kinds that have had no
// engine for the longest time.
func TestIdleKindsAreBounded(t *testing.T) {
	f := forecasts{kinds: map[kindKey]*predict.Kind{}, idle: map[kindKey]time.Time{}}
	now, used := time.Now(), map[kindKey]bool{{model: "used"}: true}
	f.kinds[kindKey{model: "used"}] = predict.NewKind(new(predict.Traffic))
	kind := func(i int) kindKey { return kindKey{model: fmt.Sprint(i)} }
	for i := range idleKindsMost + 3 {
		f.kinds[kind(i)] = predict.NewKind(new(predict.Traffic))
		f.keep(used, now.Add(time.Duration(i)*time.Second))
	}
	if len(f.idle) != idleKindsMost || len(f.kinds) != idleKindsMost+1 || f.kinds[kindKey{model: "used"}] == nil {
		t.Errorf("%d kinds, %d of them without an engine", len(f.kinds), len(f.idle))
	}
	for i := range 4 {
		if kept := f.kinds[kind(i)] != nil; kept != (i == 3) {
			t.Errorf("kind %d is kept: %v", i, kept)
		}
	}
}

// TestEnginesOfAnotherBase checks that a model that becomes an adapter gets the times of its base.
func TestEnginesOfAnotherBase(t *testing.T) {
	d := start(t, 1, func(c *engine.Config) { c.Models = []string{"sim", "tuned"} })
	waitFor(t, func() bool { return d.current().models["tuned"] != nil })
	of := func(model string) *predict.Engine { return d.current().models[model].pools[Answer].members[0].engine }
	for _, base := range []string{"", "sim", ""} {
		if err := d.fleet.SetModels(t.Context(), map[string]*cluster.Model{"tuned": {Base: base}}); err != nil {
			t.Fatal(err)
		}
		d.current()
		d.forgetKinds(time.Now())
		kinds := 2
		if base != "" {
			kinds = 1
		}
		n := d.current().nodes[d.fleet.Load().Nodes[0]]
		if (of("tuned") == of("sim")) != (base != "") || len(n.engines) != kinds {
			t.Errorf("base %q: %v", base, of("tuned") == of("sim"))
		}
	}
}
