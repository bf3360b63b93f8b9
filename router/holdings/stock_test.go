package holdings

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// others are namespaces of engines that cannot read the blocks of namespace. Each differs in one
// thing that a block's bytes depend on.
func others() map[string]block.Namespace {
	of := func(change func(n *block.Namespace)) block.Namespace {
		n := namespace
		change(&n)
		return n
	}
	return map[string]block.Namespace{
		"revision": of(func(n *block.Namespace) { n.Revision = "2" }),
		"adapter":  of(func(n *block.Namespace) { n.Revision += "+other" }),
		"dtype":    of(func(n *block.Namespace) { n.DType = "fp8" }),
		"layout":   of(func(n *block.Namespace) { n.Layout = "other" }),
		"tenant":   of(func(n *block.Namespace) { n.Tenant = "t" }),
	}
}

// TestConfigurationsAreApart has the blocks of a prompt in two configurations of one daemon. What
// one of them drops does not go for the other. A count never adds blocks of both.
func TestConfigurationsAreApart(t *testing.T) {
	for what, other := range others() {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kv.sock")
			d := startDaemon(t, path)
			defer d.stop()
			m := follow(t, static(path))
			chain, digests := prompt(40)
			d.reads("node", nil, []block.Namespace{namespace, other})
			d.put(digests, 0, 20)
			d.putIn(other, digests, 0, 30)
			eventually(t, m, chain, "host:7072", Reach{Unknown, 30, 30, 30, 0})
			d.removeIn(other, digests[5])
			eventually(t, m, chain, "host:7072", Reach{Unknown, 20, 20, 20, 0})
			d.remove(digests[7])
			eventually(t, m, chain, "host:7072", Reach{Unknown, 7, 7, 7, 0})
			d.putIn(other, digests, 5, 6)
			eventually(t, m, chain, "host:7072", Reach{Unknown, 30, 30, 30, 0})
			if s := m.Stats(); s.Held != 2 || s.Index.Nodes != 4 || s.LeftOut != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestPlacesOfConfigurations fills all places of a daemon. A further configuration does not count,
// and its blocks are counted as left out.
func TestPlacesOfConfigurations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	defer d.stop()
	m := follow(t, static(path))
	chain, digests := prompt(40)
	d.reads("node", nil, []block.Namespace{namespace})
	d.put(digests, 0, 3)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 3, 3, 3, 0})
	for i := range MaxConfigurations - 1 {
		n := namespace
		n.Revision = fmt.Sprint("r", i)
		d.putIn(n, digests, 0, 2)
	}
	until(t, "all places are taken", func() bool { return m.Stats().Held == MaxConfigurations })
	n := namespace
	n.Revision = "one too many"
	d.putIn(n, digests, 0, 10)
	until(t, "its blocks are left out", func() bool { return m.Stats().LeftOut == 10 })
	eventually(t, m, chain, "host:7072", Reach{Unknown, 3, 3, 3, 0})
	if s := m.Stats(); s.Held != MaxConfigurations || m.further != MaxConfigurations-1 {
		t.Errorf("%+v with %d further ones", s, m.further)
	}
	m.SetStatic(nil)
	if s := m.Stats(); m.further != 0 || s.Index.Nodes != 0 {
		t.Errorf("after the daemon has left: %d further ones, %+v", m.further, s)
	}
}

// TestDisplaced checks which configuration gives way to a new one, if any.
func TestDisplaced(t *testing.T) {
	m := New(Options{})
	c := newCache(m, "c", nil, "")
	fill := func() []*held {
		c.empty()
		for i := range MaxConfigurations {
			if c.find(fmt.Sprint(i), true) == nil {
				t.Fatal("no place for", i)
			}
		}
		return append([]*held(nil), c.held...)
	}
	gone := func(h *held) bool { return c.find(h.name.Value(), false) == nil }

	fill()
	if c.find("new", true) != nil || c.find("new", false) != nil {
		t.Error("all are fresh, and one gives way")
	}
	all := fill()
	all[3].told = all[3].told.Add(-idleAfter)
	if c.find("new", true) == nil || !gone(all[3]) || gone(all[4]) || m.further != MaxConfigurations-1 {
		t.Error("the idle one has not given way, or another one has")
	}
	all = fill()
	all[3].told = all[3].told.Add(-idleAfter)
	c.readers = map[string][]name{"node": {all[3].name, all[5].name}}
	if c.find("new", true) != nil {
		t.Error("one that is read gives way to one that is not")
	}
	all[9].told = all[9].told.Add(-idleAfter)
	if c.find("new", true) == nil || !gone(all[9]) || gone(all[3]) {
		t.Error("the idle one that nobody reads has not given way")
	}
	all = fill()
	for _, h := range all[:MaxConfigurations-1] {
		c.readers["node"] = append(c.readers["node"], h.name)
	}
	c.readers["more"] = append(c.readers["more"], all[0].name)
	fresh := c.find("new", false)
	c.readers["more"] = append(c.readers["more"], nameOf("new"))
	if fresh != nil || c.find("new", true) == nil || !gone(all[MaxConfigurations-1]) || gone(all[0]) {
		t.Error("the one that nobody reads has not given way to one that is read")
	}
	if c.find("later", true) != nil {
		t.Error("all are read, and one gives way to one that is not")
	}
	c.empty()
	if m.further != 0 || m.index.Stats().Nodes != 0 {
		t.Errorf("%d further ones are left, and %+v", m.further, m.index.Stats())
	}
	m.further = maxFurther
	if c.find("first", true) == nil || c.find("second", true) != nil {
		t.Error("a first one has no place, or a second one has")
	}
}

// reads says that a node's engine reads namespaces, in place of those before.
func (d *daemon) reads(node string, before, now []block.Namespace) {
	d.t.Helper()
	for _, n := range before {
		d.residency.EndRead(node, n.String(), false)
	}
	for _, n := range now {
		if err := d.residency.Read(node, n.String()); err != nil {
			d.t.Fatal(err)
		}
	}
}

// TestReaders has the blocks of a prompt in several configurations. A node counts those that its
// engine can read, and none of them as long as the engine has not said what it reads.
func TestReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(40)
	d.put(digests, 0, 20)
	n := others()
	d.putIn(n["revision"], digests, 0, 30)
	d.putIn(n["dtype"], digests, 0, 35)
	until(t, "all are known", func() bool { return m.Stats().Held == 3 })
	eventually(t, m, chain, "host:7072", Reach{Unknown, 0, 0, 0, 0})

	first := []block.Namespace{namespace, n["adapter"]}
	d.reads("node", nil, first)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 20, 20, 20, 0})
	d.putIn(n["adapter"], digests, 0, 25)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 25, 25, 25, 0})
	d.reads("elsewhere", nil, []block.Namespace{n["dtype"]})
	until(t, "the other node is known", func() bool { return m.Stats().Readers == 2 })
	ask := func(q *Query) {
		q.Begin(m, "m")
		for _, node := range []string{"node", "node/1", "nodes", "elsewhere", "unknown"} {
			q.Node(node, "host:7072")
		}
		m.Match(chain, q)
	}
	var q Query
	ask(&q)
	for i, want := range []int32{25, 25, 0, 35, 0} {
		if q.Reach[i].Host != want || q.Reach[i].Disk != want {
			t.Errorf("node %d: %+v, want %d", i, q.Reach[i], want)
		}
	}
	if allocations := testing.AllocsPerRun(100, func() { ask(&q) }); allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}

	for what, other := range n { // the engine starts anew
		d.reads("node", first, []block.Namespace{other})
		first = []block.Namespace{other}
		want := map[string]int32{"revision": 30, "dtype": 35, "adapter": 25}[what]
		eventually(t, m, chain, "host:7072", Reach{Unknown, want, want, want, 0})
	}
	d.reads("node", first, nil)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 0, 0, 0, 0})

	d.reads("node", nil, []block.Namespace{namespace})
	eventually(t, m, chain, "host:7072", Reach{Unknown, 20, 20, 20, 0})
	d.stop()
	eventually(t, m, chain, "host:7072", Reach{Device: Unknown})
	d = startDaemon(t, path)
	d.putIn(n["dtype"], digests, 0, 5)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 5, 5, 5, 0}) // the new daemon has not been told
	if s := m.Stats(); s.Readers != 0 || s.Held != 1 {
		t.Errorf("%+v", s)
	}
	d.stop()
}

// TestRanksReadTogether checks that a node reads what any of its engine's ranks has said.
func TestRanksReadTogether(t *testing.T) {
	c := &cache{m: New(Options{})}
	err := c.hear(&cognitorav1.Readers{Nodes: []*cognitorav1.Reader{{Node: "n/0", Namespaces: []string{"a"}},
		{Node: "n/1", Namespaces: []string{"b"}}, {Node: "m"}}})
	want := map[string][]name{"n": {nameOf("a"), nameOf("b")}, "m": {}}
	if err != nil || !reflect.DeepEqual(c.readers, want) {
		t.Errorf("%v, %v", c.readers, err)
	}
}

// TestReadersAreBounded checks that a daemon cannot tell of more readers than it may.
func TestReadersAreBounded(t *testing.T) {
	c := newCache(New(Options{}), "c", nil, "")
	for what, nodes := range map[string][]*cognitorav1.Reader{
		"nodes": make([]*cognitorav1.Reader, maxReaders+1),
		"names": {{Node: "a", Namespaces: make([]string, maxReads+1)}},
		"text":  {{Node: "a", Namespaces: []string{strings.Repeat("x", block.MaxNamespace+1)}}},
	} {
		if err := c.hear(&cognitorav1.Readers{Nodes: nodes}); err != errStream {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.hear(&cognitorav1.Readers{Present: make([]string, maxPresent+1)}); err != errStream {
		t.Errorf("configurations with blocks: %v", err)
	}
}

// TestUnsaid has a prompt's blocks in one configuration. A node whose engine has not said what it
// reads counts them only while the daemon has blocks of no other configuration of the model,
// whatever these blocks are.
func TestUnsaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	defer d.stop()
	m := follow(t, static(path))
	chain, digests := prompt(40)
	_, further := prompt(60)
	counts := func(want int32) {
		t.Helper()
		eventually(t, m, chain, "host:7072", Reach{Unknown, want, want, want, 0})
	}
	d.put(digests, 0, 20)
	counts(20)
	other := others()["revision"]
	other.Model = "another"
	d.putIn(other, further, 50, 51)
	until(t, "it is known", func() bool { return m.Stats().Held == 2 })
	counts(20) // other models do not matter
	other.Model = namespace.Model
	d.putIn(other, further, 50, 51)
	counts(0)
	d.removeIn(other, further[50])
	counts(20)
	alias := namespace
	alias.Model = "m, as its weights are called"
	d.putIn(alias, digests, 0, 5)
	counts(0)
	d.removeIn(alias, digests[0])
	counts(20)
}

// TestUnsaidByOlderDaemons checks what counts for a node whose engine has not said what it reads,
// if its daemon does not say which configurations have blocks, or has too many.
func TestUnsaidByOlderDaemons(t *testing.T) {
	c := newCache(New(Options{}), "c", nil, "")
	n := others()
	of := kind{nameOf(namespace.String()), nameOf(namespace.Model)}
	only := func() bool { return c.stock.Load().sole(&of) }
	c.find(namespace.String(), true)
	if !only() {
		t.Error("one configuration does not count")
	}
	c.find(n["tenant"].String(), true)
	if only() {
		t.Error("one of two counts")
	}
	for _, of := range []struct {
		told *cognitorav1.Readers
		want bool
	}{
		{&cognitorav1.Readers{Present: []string{namespace.String()}}, true},
		{&cognitorav1.Readers{More: true}, false},
		{&cognitorav1.Readers{Present: []string{n["tenant"].String()}}, false},
		{&cognitorav1.Readers{Present: []string{namespace.String(), n["tenant"].String()}}, false},
		{&cognitorav1.Readers{Present: []string{namespace.String(), "of a later version"}}, true},
	} {
		if err := c.hear(of.told); err != nil || only() != of.want {
			t.Errorf("%v: %v, %v", of.told, only(), err)
		}
	}
}

// TestPromotesWhatIsRead checks which namespaces are searched for blocks to promote.
func TestPromotesWhatIsRead(t *testing.T) {
	var s spaces
	n := others()
	for _, of := range []block.Namespace{namespace, n["revision"], n["dtype"]} {
		s.heard(of.String(), block.LayerAll)
	}
	if got := s.of("m", []name{nameOf(n["revision"].String())}); len(got) != 1 || got[0].Revision != "2" {
		t.Errorf("%+v", got)
	}
	if got := s.of("m", []name{}); len(got) != 0 {
		t.Errorf("%+v, and nothing is read", got)
	}
}

// TestSpaceInUseStays checks that new namespaces replace those that were not heard lately.
func TestSpaceInUseStays(t *testing.T) {
	var s spaces
	s.heard(namespace.String(), block.LayerAll)
	n := namespace
	for i := range 2 * maxSpaces {
		n.Model = fmt.Sprint(i)
		s.heard(n.String(), block.LayerAll)
		s.heard(namespace.String(), block.LayerAll)
	}
	if len(s.of("m", nil)) != 1 || len(s.list) != maxSpaces {
		t.Errorf("the namespace in use is gone; %d are known", len(s.list))
	}
	for model, want := range map[string]string{n.Model: n.Model, "0": namespace.Model} {
		if got := s.of(model, nil); len(got) == 0 || got[0].Model != want {
			t.Errorf("%+v for model %s", got, model)
		}
	}
}
