package holdings

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// fleetOf starts daemons, each named by its address without the port. Those with a speed exchange
// blocks with other hosts.
func fleetOf(t *testing.T, pulled map[string]func() float64) (map[string]*daemon, *Map) {
	t.Helper()
	dir, daemons, static := t.TempDir(), map[string]*daemon{}, map[string]string{}
	for name, speed := range pulled {
		path := filepath.Join(dir, name+".sock")
		daemons[name], static[name+":1"] = startDaemonOn(t, path, nil, speed), "unix://"+path
	}
	return daemons, follow(t, Options{Static: static})
}

// TestShared checks that a node's host reaches the blocks of all daemons that exchange blocks, also
// of daemons without a node, and that a daemon outside of the fleet shares nothing.
func TestShared(t *testing.T) {
	var speed atomic.Int64
	pulled := func() float64 { return float64(speed.Load()) }
	daemons, m := fleetOf(t, map[string]func() float64{"a": pulled, "b": pulled, "idle": pulled, "alone": nil})
	chain, digests := prompt(40)
	daemons["a"].put(digests, 0, 8)
	daemons["b"].put(digests, 0, 20)
	daemons["alone"].put(digests, 0, 40)
	eventually(t, m, chain, "alone:1", Reach{Unknown, 40, 40, 40, 0})
	eventually(t, m, chain, "a:1", Reach{Unknown, 8, 8, 20, 0})
	eventually(t, m, chain, "b:1", Reach{Unknown, 20, 20, 20, 0})
	eventually(t, m, chain, "idle:1", Reach{Unknown, 0, 0, 20, 0}) // its daemon has no block at all
	daemons["idle"].put(digests, 0, 30)
	eventually(t, m, chain, "a:1", Reach{Unknown, 8, 8, 30, 0})

	var q Query
	ask := func() {
		q.Begin(m, "m")
		q.Node("1", "b:1")
		q.Node("2", "nowhere:1")
		q.Node("3", "alone:1")
		q.Node("4", "b:1")
		m.Match(chain, &q)
	}
	ask()
	b, alone := Reach{Unknown, 20, 20, 30, 0}, Reach{Unknown, 40, 40, 40, 0}
	for i, want := range []Reach{b, {Device: Unknown}, alone, b} {
		if q.Reach[i] != want {
			t.Errorf("node %d: %+v, want %+v", i+1, q.Reach[i], want)
		}
	}
	if n := testing.AllocsPerRun(100, ask); n != 0 {
		t.Errorf("%v allocations", n)
	}
	daemons["idle"].stop()
	until(t, "the blocks of a daemon that is gone do not count", func() bool {
		ask()
		return q.Reach[0].Shared == 20
	})
	for _, name := range []string{"a", "b", "alone"} {
		daemons[name].stop()
	}
}

// TestSharedByConfiguration has a prompt's blocks on another host in a configuration that a node's
// engine cannot read, and fewer in the one that it reads. The node counts the latter, and an engine
// that has not said what it reads neither.
func TestSharedByConfiguration(t *testing.T) {
	pulled := func() float64 { return 1 << 20 }
	daemons, m := fleetOf(t, map[string]func() float64{"a": pulled, "b": pulled, "idle": pulled})
	chain, digests := prompt(40)
	n := others()
	daemons["a"].reads("node", nil, []block.Namespace{namespace})
	daemons["a"].reads("adapter", nil, []block.Namespace{namespace, n["adapter"]})
	for what, other := range n {
		daemons["b"].putIn(other, digests, 0, 30)
		daemons["idle"].putIn(other, digests, 0, map[string]int{"adapter": 37}[what])
	}
	var q Query
	ask := func(what string, nodes map[string]Reach) {
		t.Helper()
		for node, want := range nodes {
			until(t, what, func() bool {
				q.Begin(m, "m")
				q.Node(node, "a:1")
				m.Match(chain, &q)
				return q.Reach[0] == want
			})
		}
	}
	far := func(shared int32) Reach { return Reach{Unknown, 0, 0, shared, 0} }
	ask("what cannot be read does not count", map[string]Reach{"node": far(0), "adapter": far(37), "other": far(0)})
	daemons["b"].put(digests, 0, 12)
	ask("what can be read counts", map[string]Reach{"node": far(12), "adapter": far(37), "other": far(0)})
	daemons["a"].putIn(n["dtype"], digests, 0, 39)
	ask("the most counts that can be read", map[string]Reach{"node": far(12), "adapter": far(37),
		"other": {Unknown, 39, 39, 39, 0}}) // all that its host has is of one configuration
	q.Begin(m, "m")
	for _, node := range []string{"node", "adapter"} {
		q.Node(node, "a:1")
		q.Node(node, "b:1") // whose daemon has not been told what the node reads
	}
	m.Match(chain, &q)
	for i, want := range []int32{12, 0, 37, 0} {
		if q.Reach[i].Shared != want {
			t.Errorf("node %d: %+v, want %d", i, q.Reach[i], want)
		}
	}
	for _, d := range daemons {
		d.stop()
	}
}

// TestFetch checks the time in which a block comes from another host: by the measured speed, and by
// the bytes of the configuration that counts.
func TestFetch(t *testing.T) {
	var speed atomic.Int64
	daemons, m := fleetOf(t, map[string]func() float64{
		"a": func() float64 { return float64(speed.Load()) }, "b": func() float64 { return 1 },
	})
	a, b, n := daemons["a"], daemons["b"], others()
	chain, digests := prompt(40)
	told := 0
	tell := func() { // a daemon tells its speed with its blocks
		a.putIn(n["tenant"], digests, told, told+1)
		told++
	}
	reach := func(shared int32, fetch float32) {
		t.Helper()
		eventually(t, m, chain, "a:1", Reach{Unknown, int32(told), int32(told), shared, fetch})
	}
	var said []block.Namespace
	reads := func(now []block.Namespace) {
		a.reads("node", said, now)
		said = now
	}
	reads([]block.Namespace{namespace, n["dtype"], n["tenant"]})
	speed.Store(1 << 20)
	b.put(digests, 0, 10)
	tell()
	reach(10, 0) // objects of one of an unknown number of layers
	b.putLayer(n["dtype"], block.LayerAll, 512, digests, 0, 15)
	reach(15, 512.0/(1<<20))
	b.putLayer(namespace, block.LayerAll, 1024, digests, 0, 20)
	reach(20, 1024.0/(1<<20))
	reads([]block.Namespace{n["dtype"], n["tenant"]})
	reach(15, 512.0/(1<<20))
	speed.Store(1 << 10)
	tell()
	reach(15, 512.0/(1<<10))
	speed.Store(1 << 15) // and a speed alone after a moment
	reach(15, 512.0/(1<<15))
	speed.Store(-1)
	tell()
	reach(15, 0)
	a.stop()
	b.stop()
}

// TestBlockBytes checks the size of 16 tokens by the namespace of their objects.
func TestBlockBytes(t *testing.T) {
	c := newCache(New(Options{}), "c", nil, "")
	for _, of := range []struct {
		tokens, tp uint32
		told       []uint64
		want       float64
	}{
		{16, 1, nil, 0},
		{16, 1, []uint64{0}, 0},
		{16, 1, []uint64{1000, 0}, 1000}, // only engines have stored since
		{64, 8, []uint64{500, 1000}, 2000},
		{1024, 1, []uint64{1 << 30}, 0}, // no objects that count in routing
	} {
		n := namespace
		n.Tokens, n.TP = of.tokens, of.tp
		h := c.find(n.String(), true)
		for _, size := range of.told {
			c.weigh(h, size)
		}
		last := c.stock.Load().configurations[len(c.held)-1]
		if last.bytes != of.want {
			t.Errorf("%s: %g bytes for 16 tokens after %d, want %g", n, last.bytes, of.told, of.want)
		}
		c.m.mu.Lock()
		c.empty()
		c.m.mu.Unlock()
	}
}
