package holdings

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/router/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var namespace = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "test", Tokens: 16, TP: 1, PP: 1}

// daemon is a store that serves its residency.
type daemon struct {
	t         *testing.T
	store     *store.Store
	residency *residency.Index
	path      string
	stop      func()
}

// startDaemon starts a daemon that exchanges no blocks with other hosts.
func startDaemon(t *testing.T, path string) *daemon {
	t.Helper()
	return startDaemonOn(t, path, nil, nil)
}

// startDaemonOn starts a daemon with an SSD tier, unless disk is nil. The daemon exchanges blocks
// with other hosts and measures this speed, unless pulled is nil.
func startDaemonOn(t *testing.T, path string, disk *ssd.Options, pulled func() float64) *daemon {
	t.Helper()
	d := &daemon{t: t, path: path, residency: residency.New(residency.Options{})}
	var err error
	d.store, err = store.Open(t.Context(), store.Options{RAM: 64 << 20, SSD: disk, Changed: func(c store.Change) {
		tier := residency.Host
		if c.Tier == store.SSD {
			tier = residency.Disk
		}
		d.residency.Apply(&residency.Change{Addr: c.Addr, Namespace: c.Namespace, Parent: c.Parent, Tier: tier,
			Names: block.ParseNames(c.Attr), Present: c.Present, Length: c.Length})
	}})
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.New(rpc.Options{Store: d.store, Residency: d.residency, Pulled: pulled,
		Drain: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen.OpenUnix(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l, nil) }()
	d.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		d.store.Close()
	}
	return d
}

// put stores blocks of a chain.
func (d *daemon) put(digests []block.Digest, from, to int) { d.putIn(namespace, digests, from, to) }

// putIn stores blocks of a chain in a namespace.
func (d *daemon) putIn(n block.Namespace, digests []block.Digest, from, to int) {
	d.t.Helper()
	d.putLayer(n, 0, 100, digests, from, to)
}

// putLayer stores blocks of a chain in a layer of a namespace, each of so many bytes.
func (d *daemon) putLayer(n block.Namespace, layer uint32, bytes int, digests []block.Digest, from, to int) {
	d.t.Helper()
	for i := from; i < to; i++ {
		item := store.Item{Addr: block.Addr{Digest: digests[i], Model: n.ID(), Layer: layer}, Namespace: n.String()}
		if i > 0 {
			item.Parent = digests[i-1]
		}
		if _, err := d.store.Put(d.t.Context(), item, make([]byte, bytes), false); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *daemon) remove(digest block.Digest) { d.removeIn(namespace, digest) }

func (d *daemon) removeIn(n block.Namespace, digest block.Digest) {
	d.t.Helper()
	if ok, err := d.store.Delete(d.t.Context(), block.Addr{Digest: digest, Model: n.ID()}); !ok || err != nil {
		d.t.Fatal(ok, err)
	}
}

// report reports blocks of an engine of the host.
func (d *daemon) report(r residency.Report) {
	d.t.Helper()
	if err := d.residency.Report(&r); err != nil {
		d.t.Fatal(err)
	}
}

// prompt is a chain of n blocks and their digests.
func prompt(n int) (*prefix.Chain, []block.Digest) {
	tokens := make([]uint32, n*block.Tokens)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	c := &prefix.Chain{}
	c.Reset(prefix.Seed("m", "", ""), nil, tokens)
	var digests []block.Digest
	d := block.Seed("m", "", "")
	for i := range n {
		d = block.Next(d, (*[block.Tokens]uint32)(tokens[i*block.Tokens:]))
		digests = append(digests, d)
	}
	return c, digests
}

// eventually asks until the answer for a node of the host is want.
func eventually(t *testing.T, m *Map, c *prefix.Chain, address string, want Reach) {
	t.Helper()
	var q Query
	var got Reach
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if q.Begin(m, "m") {
			q.Node("node", address)
			m.Match(c, &q)
			if got = q.Reach[0]; got == want {
				return
			}
		}
		<-time.After(time.Millisecond) // no event announces the change
	}
	t.Fatalf("the node reaches %+v, want %+v", got, want)
}

func follow(t *testing.T, o Options) *Map {
	t.Helper()
	o.Logger = slog.Default()
	return following(t, New(o))
}

// following runs a map until the test ends.
func following(t *testing.T, m *Map) *Map {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

func static(path string) Options {
	return Options{Static: map[string]string{"host:7072": "unix://" + path}}
}

// TestFollows checks that the map follows a daemon's blocks as they come and go, and after a
// restart of the daemon.
func TestFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(70)
	eventually(t, m, chain, "host:7072", Reach{Device: Unknown})
	d.put(digests, 0, 50)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 50, 50, 50, 0})
	eventually(t, m, chain, "elsewhere:7072", Reach{Device: Unknown})
	d.remove(digests[40])
	eventually(t, m, chain, "host:7072", Reach{Unknown, 40, 40, 40, 0})
	d.put(digests, 40, 41)
	d.put(digests, 50, 70)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 70, 70, 70, 0})

	d.stop()
	eventually(t, m, chain, "host:7072", Reach{Device: Unknown})
	d = startDaemon(t, path)
	d.put(digests, 0, 3)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 3, 3, 3, 0})
	d.stop()
}

// TestTooManyDaemons checks that each daemon left out is counted once, while it is announced.
func TestTooManyDaemons(t *testing.T) {
	m := New(Options{Logger: slog.Default()})
	ended, end := context.WithCancel(t.Context())
	end()
	m.life = ended // the map connects to no daemon
	defer m.wg.Wait()
	announce := func(id string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.follow(id, []string{id}, "127.0.0.1:1")
	}
	refused := func(want int) {
		t.Helper()
		if s := m.Stats(); s.Caches != maxCaches || s.Refused != want {
			t.Errorf("%d are followed, %d left out, want %d", s.Caches, s.Refused, want)
		}
	}
	for i := range maxCaches {
		announce(fmt.Sprint(i))
	}
	refused(0)
	for range 3 { // heartbeats
		announce("late")
		announce("later")
		announce("7")
	}
	refused(2)
	m.leave("later")
	refused(1)
	m.leave("7")
	announce("late")
	refused(0)
	announce("later")
	refused(1)
	m.retain(nil)
	if s := m.Stats(); s.Caches != 0 || s.Refused != 0 {
		t.Errorf("%+v after all have gone", s)
	}
}

// TestBlocksOutOfOrder stores a block before its parent. The block counts once its place is known.
func TestBlocksOutOfOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(6)
	d.put(digests, 3, 4)
	d.put(digests, 0, 3)
	d.put(digests, 4, 6)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 6, 6, 6, 0})
	d.remove(digests[3])
	eventually(t, m, chain, "host:7072", Reach{Unknown, 3, 3, 3, 0})
	d.stop()
}

// TestEngines checks that an engine's report replaces the prediction. A restarted engine begins
// empty.
func TestEngines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(40)
	stored := residency.Event{Kind: residency.Stored, Namespace: namespace.String(), Tier: residency.Device,
		Digests: digests[:10]}
	d.report(residency.Report{Engine: "node", Epoch: 1, Fresh: true, Number: 1, Events: []residency.Event{stored}})
	d.put(digests, 0, 20)
	eventually(t, m, chain, "host:7072", Reach{10, 20, 20, 20, 0})
	d.report(residency.Report{Engine: "node", Epoch: 2, Fresh: true, Number: 1})
	eventually(t, m, chain, "host:7072", Reach{0, 20, 20, 20, 0})
	d.report(residency.Report{Engine: "node", Epoch: 2, Gone: true, Number: 2})
	eventually(t, m, chain, "host:7072", Reach{Unknown, 20, 20, 20, 0})
	m.SetStatic(nil)
	if !m.Empty() || m.Stats().Index.Nodes != 0 {
		t.Errorf("after the last daemon has left: %+v", m.Stats())
	}
	d.stop()
}

// TestEnginesAreLeftOut checks that with NoEngines only the blocks of daemons count.
func TestEnginesAreLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	o := static(path)
	o.NoEngines = true
	m := follow(t, o)
	chain, digests := prompt(40)
	d.report(residency.Report{Engine: "node", Epoch: 1, Fresh: true, Number: 1, Events: []residency.Event{
		{Kind: residency.Stored, Namespace: namespace.String(), Tier: residency.Device, Digests: digests[:10]},
		{Kind: residency.Stored, Namespace: namespace.String(), Tier: residency.Host, Digests: digests[10:30],
			Parent: digests[9]},
	}})
	d.put(digests, 0, 20)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 20, 20, 20, 0})
	if s := m.Stats(); m.Reports("node") || s.Engines != 0 || s.Index.Nodes != 2 {
		t.Errorf("an engine counts: %+v", s)
	}
	d.stop()
}

// TestEngineMedia checks that an engine's blocks in host memory and on disk count for those tiers,
// not for its own memory.
func TestEngineMedia(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(40)
	number := uint64(0)
	say := func(kind residency.Kind, tier residency.Tiers, from, to int) {
		number++
		e := residency.Event{Kind: kind, Namespace: namespace.String(), Tier: tier, Pinned: from == 0,
			Digests: digests[from:to]}
		if from > 0 {
			e.Parent = digests[from-1]
		}
		d.report(residency.Report{Engine: "node", Epoch: 1, Fresh: number == 1, Number: number,
			Events: []residency.Event{e}})
	}
	say(residency.Stored, residency.Device, 0, 10)
	eventually(t, m, chain, "host:7072", Reach{10, 10, 10, 10, 0})
	say(residency.Stored, residency.Host, 8, 20)
	say(residency.Stored, residency.Disk, 20, 30)
	say(residency.Stored, residency.Shared, 30, 35)
	eventually(t, m, chain, "host:7072", Reach{10, 20, 30, 30, 0})
	d.put(digests, 0, 25)
	eventually(t, m, chain, "host:7072", Reach{10, 25, 30, 30, 0})
	say(residency.Removed, residency.Device, 9, 10)
	say(residency.Removed, residency.Disk, 28, 29)
	eventually(t, m, chain, "host:7072", Reach{9, 25, 28, 28, 0})
	if s := m.Stats(); s.Engines != 1 || s.Index.Nodes != 5 {
		t.Errorf("%+v", s)
	}
	d.report(residency.Report{Engine: "node", Epoch: 1, Gone: true, Number: number + 1})
	eventually(t, m, chain, "host:7072", Reach{Unknown, 25, 25, 25, 0})
	if s := m.Stats(); s.Index.Nodes != 2 {
		t.Errorf("places are left: %+v", s)
	}
	d.stop()
}

func TestMatchDoesNotAllocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	m := follow(t, static(path))
	chain, digests := prompt(64)
	d.put(digests, 0, 64)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 64, 64, 64, 0})
	var q Query
	ask := func() {
		q.Begin(m, "m")
		for range 8 {
			q.Node("node", "host:7072")
		}
		m.Match(chain, &q)
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n != 0 {
		t.Errorf("%v allocations", n)
	}
	d.stop()
}
