package holdings

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestShared checks that a node's host reaches the blocks of all daemons that exchange blocks, also
// of daemons without a node, and that a daemon outside of the fleet shares nothing.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	var speed atomic.Int64
	pulled := func() float64 { return float64(speed.Load()) }
	daemons, static := map[string]*daemon{}, map[string]string{}
	for name, of := range map[string]func() float64{"a": pulled, "b": pulled, "idle": pulled, "alone": nil} {
		path := filepath.Join(dir, name+".sock")
		daemons[name], static[name+":1"] = startDaemonOn(t, path, nil, of), "unix://"+path
	}
	m := follow(t, Options{Static: static})
	chain, digests := prompt(40)
	daemons["a"].put(digests, 0, 8, true)
	daemons["b"].put(digests, 0, 20, true)
	daemons["alone"].put(digests, 0, 40, true)
	eventually(t, m, chain, "alone:1", Reach{Unknown, 40, 40, 40, 0})
	eventually(t, m, chain, "a:1", Reach{Unknown, 8, 8, 20, 0})
	eventually(t, m, chain, "b:1", Reach{Unknown, 20, 20, 20, 0})
	eventually(t, m, chain, "idle:1", Reach{Unknown, 0, 0, 20, 0})
	daemons["idle"].put(digests, 0, 20, true)
	daemons["idle"].put(digests, 20, 30, false) // without a place in the chain
	eventually(t, m, chain, "a:1", Reach{Unknown, 8, 8, 30, 0})
	speed.Store(1 << 20)
	daemons["a"].put(digests, 8, 9, true)
	eventually(t, m, chain, "a:1", Reach{Unknown, 9, 9, 30, 1 << 20})
	speed.Store(-1)
	daemons["a"].put(digests, 9, 10, true)
	eventually(t, m, chain, "a:1", Reach{Unknown, 10, 10, 30, 0})
	if n := m.BlockBytes("m"); n != 0 {
		t.Errorf("objects of one layer: %g bytes for 16 tokens", n)
	}

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

// TestBlockBytes checks the size of 16 tokens by the namespace of their objects.
func TestBlockBytes(t *testing.T) {
	var m Map
	size := func(want float64) {
		t.Helper()
		if got := m.BlockBytes("m"); got != want {
			t.Errorf("%g bytes for 16 tokens, want %g", got, want)
		}
	}
	size(0)
	n := namespace
	m.spaces.heard(n.String(), block.LayerAll, 0)
	m.spaces.heard(n.String(), 0, 1<<30) // one of an unknown number of layers
	m.spaces.heard("kv1;other;1;bf16;test;16;1.0;1.0;", block.LayerAll, 1<<30)
	size(0)
	m.spaces.heard(n.String(), block.LayerAll, 1000)
	size(1000)
	m.spaces.heard(n.String(), block.LayerAll, 0) // only engines have stored since
	size(1000)
	n.Tokens, n.TP = 64, 8
	m.spaces.heard(n.String(), block.LayerAll, 1000)
	size(2000)
	n.Tokens = 1024
	m.spaces.heard(n.String(), block.LayerAll, 1<<30) // not a size that counts in routing
	size(2000)
}
