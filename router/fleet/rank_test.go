package fleet

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/prefix"
)

// ranked is testNode with data-parallel ranks.
func ranked(id string, slots int32, ranks int) *Node {
	n := testNode(id, slots, "m")
	info := *n.Info()
	info.DataParallel = ranks
	n.setInfo(&info)
	n.adopt(newRanks(n, ranks), time.Now())
	return n
}

func TestOnlyRankIsTheNode(t *testing.T) {
	n := testNode("n", 4)
	r := n.Ranks()[0]
	if len(n.Ranks()) != 1 || r.Name != "n" || r.IDHash != n.IDHash || r.Header != nil || r.Owner() != n {
		t.Errorf("%+v", r)
	}
	n.setLoad(held(3, 1), time.Now())
	if !r.Acquire() || r.InFlight() != 1 || n.InFlight() != 1 || r.Load() != n.Load() || r.Beside(3, 0) != 0 {
		t.Errorf("%d and %d in flight", r.InFlight(), n.InFlight())
	}
	r.Release()
	if r.InFlight() != 0 || n.InFlight() != 0 {
		t.Errorf("%d and %d in flight", r.InFlight(), n.InFlight())
	}
}

func TestRanksAreNamed(t *testing.T) {
	n := ranked("n", 0, 3)
	hashes := map[uint64]bool{n.IDHash: true}
	for i, r := range n.Ranks() {
		if r.Index != i || r.Count != 3 || r.Name != fmt.Sprintf("n/%d", i) || hashes[r.IDHash] ||
			string(r.Header) != fmt.Sprintf("X-Data-Parallel-Rank: %d\r\n", i) {
			t.Errorf("rank %d: %+v, %q", i, r, r.Header)
		}
		hashes[r.IDHash] = true
	}
}

// TestRanksShareTheSlots: each rank counts its own requests, and max_concurrent bounds all of them.
func TestRanksShareTheSlots(t *testing.T) {
	n := ranked("n", 3, 2)
	a, b := n.Ranks()[0], n.Ranks()[1]
	for i, r := range []*Rank{a, a, b, a, b} {
		if r.Acquire() != (i < 3) {
			t.Fatal("want three slots")
		}
	}
	if a.InFlight() != 2 || b.InFlight() != 1 || n.InFlight() != 3 || a.Beside(0, 0) != 1 || b.Beside(0, 0) != 2 {
		t.Errorf("%d and %d of %d in flight", a.InFlight(), b.InFlight(), n.InFlight())
	}
	a.Release()
	if !b.Acquire() || a.InFlight() != 1 || b.InFlight() != 2 {
		t.Errorf("%d and %d in flight", a.InFlight(), b.InFlight())
	}
	for _, r := range []*Rank{a, b, b} {
		r.Release()
	}
	a.AcquireAlways()
	if a.InFlight() != 1 || n.InFlight() != 1 {
		t.Errorf("%d of %d in flight", a.InFlight(), n.InFlight())
	}
	a.Release()
	n.setFlag(flagCordoned, true)
	if a.Acquire() || a.InFlight() != 0 {
		t.Error("a cordoned node takes a request")
	}
}

// TestLoadOfRanks: the figures of a rank, less this router's requests there, are others' load.
func TestLoadOfRanks(t *testing.T) {
	n := ranked("n", 0, 2)
	info := *n.Info()
	info.BlockTokens = 2 * prefix.BlockTokens
	n.setInfo(&info)
	now := time.Now()
	n.Ranks()[0].Acquire()
	var entry books.Entry
	n.Ranks()[1].Book.Open(&entry, books.Cost{Prefill: 160, Blocks: 10}, now)
	b := held(9, 3)
	b.FreeBlocks, b.TotalBlocks, b.Watts = load.Known(60), load.Known(100), load.Known(300)
	b.Ranks = []load.Rank{
		{InFlight: load.Known(5), QueueDepth: load.Known(0), KVUsage: load.Known(0.75)},
		{InFlight: load.Known(4), QueueDepth: load.Known(3), FreeBlocks: load.Known(20), TotalBlocks: load.Known(50)},
	}
	b.Arrived(now)
	n.setLoad(b, now)
	one, two := n.Ranks()[0].Load(), n.Ranks()[1].Load()
	if one.Others != 4 || one.Waiting != 0 || one.KVUsage != load.Known(0.75) || one.OthersBlocks != 0 ||
		one.Watts != load.Known(150) || one.From != Heartbeat || one.Ranks != nil {
		t.Errorf("rank 0: %+v", one)
	}
	if two.Others != 4 || two.Waiting != 3 || two.OthersBlocks != 2*30-10 {
		t.Errorf("rank 1: %+v", two)
	}
	if l := n.Load(); l.Others != 8 || l.Waiting != 3 || l.OthersBlocks != 2*40-10 || l.Watts != load.Known(300) {
		t.Errorf("node: %+v", l)
	}
	if n.OwnPrefill(now) != 160 || n.Blocks() != 10 {
		t.Errorf("%d tokens and %v blocks at the node", n.OwnPrefill(now), n.Blocks())
	}
	if v := n.View(now); len(v.Ranks) != 2 || v.Ranks[0].Others != 4 || v.Ranks[1].OwnPrefill != 160 ||
		v.Ranks[1].Rank != 1 || v.Ranks[0].InFlight != 1 {
		t.Errorf("%+v", v.Ranks)
	}
	n.age(now.Add(defaultTrust + time.Second))
	if l := n.Ranks()[1].Load(); l.Others != 0 || l.InFlight != (load.Gauge{}) {
		t.Errorf("too old: %+v", l)
	}
	entry.Close(now)
}

// TestAnswersAreNotOthersBlocks checks that an engine with requests of this router alone has no
// blocks of others, although it counts unfinished blocks and answers, which a book does not.
func TestAnswersAreNotOthersBlocks(t *testing.T) {
	n := testNode("n", 0)
	info := *n.Info()
	info.BlockTokens = prefix.BlockTokens
	n.setInfo(&info)
	n.Acquire()
	var entry books.Entry
	n.Ranks()[0].Book.Open(&entry, books.Cost{Blocks: 28}, time.Now())
	for requests, want := range map[float64]int64{1: 0, 2: 12} {
		b := held(requests, 0)
		b.FreeBlocks, b.TotalBlocks = load.Known(60), load.Known(100)
		b.Arrived(time.Now())
		n.setLoad(b, time.Now())
		if got := n.Load().OthersBlocks; got != want {
			t.Errorf("%v requests in the engine, one of this router: %d blocks of others, want %d", requests, got, want)
		}
	}
	entry.Close(time.Now())
	n.Release()
}

// TestTotalsAreSharedEvenly: the load of an engine that tells only totals is divided by its ranks.
func TestTotalsAreSharedEvenly(t *testing.T) {
	n := ranked("n", 0, 2)
	n.Ranks()[0].Acquire()
	now := time.Now()
	n.setLoad(held(8, 4), now)
	if one, two := n.Ranks()[0].Load(), n.Ranks()[1].Load(); one.Others != 3 || two.Others != 4 || two.Waiting != 2 {
		t.Errorf("%+v and %+v", one, two)
	}
	n.take(&load.Load{Engine: load.Engine{InFlight: load.Known(4)}})
	if one, two := n.Ranks()[0].Load(), n.Ranks()[1].Load(); one.Others != 1 || two.Others != 2 || two.From != Stream {
		t.Errorf("%+v and %+v", one, two)
	}
}

// TestOthersOfARank: a rank tells the requests of others in its load, also after a change of the
// number of ranks and once the load is too old.
func TestOthersOfARank(t *testing.T) {
	n, now := testNode("n", 0), time.Now()
	check := func(when string, requests, waiting int64) {
		t.Helper()
		for _, r := range n.Ranks() {
			gotRequests, gotWaiting := r.Others()
			if l := r.Load(); gotRequests != requests || gotWaiting != waiting || int64(l.Others) != requests ||
				int64(l.Waiting) != waiting {
				t.Errorf("%s: %d requests of others and %d that wait at %s, want %d and %d; %+v", when, gotRequests,
					gotWaiting, r.Name, requests, waiting, l)
			}
		}
	}
	check("untold", 0, 0)
	b := held(8, 4)
	b.Arrived(now)
	n.setLoad(b, now)
	check("told", 8, 4)
	n.adopt(newRanks(n, 2), now)
	check("two ranks", 4, 2)
	n.adopt(newRanks(n, 1), now)
	check("one rank again", 8, 4)
	n.age(now.Add(time.Hour))
	check("too old", 0, 0)
}

// TestRanksAreFound: a static engine's metrics name its ranks. The configuration wins, and a
// difference is a problem. Each rank has an incarnation in the index.
func TestRanksAreFound(t *testing.T) {
	t.Parallel()
	page := func(ranks int) (text string) {
		for i := range ranks {
			text += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} %d\n", i, 3*i)
			text += fmt.Sprintf("vllm:num_requests_waiting{engine=\"%d\"} 1\n", i)
			text += fmt.Sprintf("vllm:kv_cache_usage_perc{engine=\"%d\"} %g\n", i, float64(i)/10)
			text += fmt.Sprintf("vllm:cache_config_info{engine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n", i, 100*ranks)
		}
		return text
	}
	e := newEngine(t, nil, "m")
	e.set(func(e *engine) { e.metrics = page(2) })
	o := fast(Backend{URL: e.URL, ID: "found"}, Backend{URL: e.URL, ID: "set", DataParallel: 3})
	f := run(t, o)
	eventually(t, f, "two ranks with load", func(s *Snapshot) bool {
		n := s.Node("found")
		return n != nil && len(n.Ranks()) == 2 && n.Ranks()[1].Load().Others == 4 && n.Ranks()[0].Load().Others == 1
	})
	eventually(t, f, "a problem", func(s *Snapshot) bool {
		return slices.ContainsFunc(s.Problems, func(p Problem) bool {
			const why = "data_parallel_size is 3, but the engine's metrics have 2 ranks"
			return p.Subject == "set" && strings.Contains(p.Reason, why)
		})
	})
	for i, r := range f.Load().Node("found").Ranks() {
		if l := r.Load(); l.TotalBlocks.Or(0) != 100 || l.FreeBlocks.Or(0) != float64(100-10*i) {
			t.Errorf("rank %d: %v of %v blocks are free", i, l.FreeBlocks, l.TotalBlocks)
		}
	}
	set := f.Load().Node("set")
	if len(set.Ranks()) != 3 {
		t.Errorf("%d ranks, want those of the configuration", len(set.Ranks()))
	}
	refs := map[string]bool{}
	x := o.Index.(*index)
	x.mu.Lock()
	for _, id := range x.joined {
		refs[id] = true
	}
	x.mu.Unlock()
	if len(refs) != 5 || !refs["found/0"] || !refs["found/1"] || !refs["set/2"] {
		t.Errorf("in the index: %v", refs)
	}

	n := f.Load().Node("found")
	rev, old := f.Load().Rev, n.Ranks()[0]
	old.AcquireAlways()
	e.set(func(e *engine) { e.metrics = page(1) })
	eventually(t, f, "one rank", func(s *Snapshot) bool { return len(n.Ranks()) == 1 && s.Rev > rev })
	if old.Release(); n.InFlight() != 0 || old.InFlight() != 0 {
		t.Errorf("%d in flight", n.InFlight())
	}
	if x.len() != 4 {
		t.Errorf("%d in the index", x.len())
	}
}

// TestRanksOfEtcd: an agent announces the ranks and their load.
func TestRanksOfEtcd(t *testing.T) {
	t.Parallel()
	e := newEtcdFleet(t, nil)
	eng := newEngine(t, nil)
	h := node("n1", eng.URL)
	h.DataParallel = 2
	h.Ranks = []load.Rank{{InFlight: load.Known(1)}, {InFlight: load.Known(2), QueueDepth: load.Known(2)}}
	e.agent(h)
	eventually(t, e.Fleet, "joined", serves("m", 1))
	n := e.Load().Node("n1")
	if r := n.Ranks(); len(r) != 2 || r[0].Load().Others != 1 || r[1].Load().Waiting != 2 {
		t.Errorf("%d ranks", len(r))
	}
	h.KVEpoch++
	refs := []uint32{n.Ranks()[0].ref.Load(), n.Ranks()[1].ref.Load()}
	done := make(chan struct{})
	e.send(t.Context(), func(f *Fleet) { f.update(f.members["n1"], &h, time.Now()); close(done) })
	<-done
	for i, r := range n.Ranks() {
		if ref := r.ref.Load(); ref == refs[i] || ref == 0 {
			t.Errorf("rank %d keeps its blocks after a restart", i)
		}
	}
}

// TestRanksEndAtZero: whatever happens at once, requests of ranks end.
func TestRanksEndAtZero(t *testing.T) {
	n := ranked("n", 5, 3)
	f := &Fleet{o: Options{Logger: slog.New(slog.DiscardHandler), Index: &index{}}}
	f.joinRanks(n.Ranks())
	all := n.Ranks()
	stop := make(chan struct{})
	var changes, clients sync.WaitGroup
	changes.Go(func() {
		for count := 1; ; count++ {
			select {
			case <-stop:
				return
			default:
			}
			info := *n.Info()
			info.DataParallel = count % 4
			n.setInfo(&info)
			f.fitRanks(n)
			all = append(all, n.Ranks()...)
			n.setLoad(held(float64(count%7), float64(count%3)), time.Now())
		}
	})
	for client := range uint64(4) {
		clients.Go(func() {
			dice := rand.New(rand.NewPCG(client, 2))
			for range 3000 {
				ranks := n.Ranks()
				if r := ranks[dice.IntN(len(ranks))]; r.Acquire() {
					r.Load()
					r.Release()
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	changes.Wait()
	for _, r := range all {
		if r.InFlight() != 0 {
			t.Fatalf("%d in flight at %s", r.InFlight(), r.Name)
		}
	}
	if n.InFlight() != 0 || f.o.Index.(*index).len() != len(n.Ranks()) {
		t.Errorf("%d in flight, %d in the index", n.InFlight(), f.o.Index.(*index).len())
	}
}
