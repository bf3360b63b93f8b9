package holdings

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cognitora/dataplane/kv/residency"
	residencyindex "github.com/cognitora/dataplane/router/residency"
)

// TestNoRoomInTheIndex fills the index. An engine and a configuration without a place are unknown,
// not empty, and are named until their daemon leaves.
func TestNoRoomInTheIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	defer d.stop()
	m := New(Options{})
	var taken []residencyindex.Ref
	for m.index.Room() > 3 {
		taken = append(taken, m.index.Join())
	}
	m = following(t, m)
	m.SetStatic(static(path).Static)
	chain, digests := prompt(40)
	report := func(engine string, tier residency.Tiers) {
		d.report(residency.Report{Engine: engine, Epoch: 1, Fresh: true, Number: 1, Events: []residency.Event{{
			Kind: residency.Stored, Namespace: namespace.String(), Tier: tier, Digests: digests[:10],
		}}})
	}
	report("node", residency.Device)
	eventually(t, m, chain, "host:7072", Reach{10, 10, 10, 10, 0})
	d.put(digests, 0, 20)
	eventually(t, m, chain, "host:7072", Reach{10, 20, 20, 20, 0})
	report("late", residency.Device)
	d.putIn(others()["revision"], digests, 0, 30)
	until(t, "the blocks are left out", func() bool { return m.Stats().LeftOut == 30 })
	if s := m.Stats(); s.Engines != 1 || s.Roomless != 1 || s.Held != 1 || m.Reports("late") {
		t.Errorf("%+v", s)
	}
	var q Query
	q.Begin(m, "m")
	q.Node("late", "host:7072")
	m.Match(chain, &q)
	if got := q.Reach[0].Device; got != Unknown {
		t.Errorf("an engine without a place has %d blocks", got)
	}
	if got, want := m.Roomless(), []Roomless{{"host:7072", []string{"late"}, true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}

	m.index.Leave(taken[0])
	m.index.Leave(taken[1])
	c := newCache(m, "another", nil, "")
	if c.media = true; c.join("a", 1) != nil || m.index.Room() != 2 {
		t.Error("an engine that needs three places takes two")
	}
	if c.media = false; c.join("a", 1) == nil || m.index.Room() != 1 {
		t.Error("an engine that needs one place has none")
	}
	d.report(residency.Report{Engine: "late", Epoch: 2, Fresh: true, Number: 1})
	until(t, "its next incarnation has one", func() bool { return m.Reports("late") && m.Stats().Roomless == 0 })
	m.SetStatic(nil)
	if s := m.Stats(); s.Roomless != 0 || len(m.Roomless()) != 0 {
		t.Errorf("after the daemon has left: %+v", s)
	}
}
