package holdings

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
)

// TestPromotionBounds checks that a promotion beyond the bound is dropped and counted. A failed
// promotion is counted and frees its place. Refused and failed promotions must not allocate.
func TestPromotionBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	d := startDaemon(t, path)
	o := static(path)
	o.Promote = PromoteDisk
	m := follow(t, o)
	chain, digests := prompt(4)
	d.put(digests, 0, 3)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 3, 3, 3, 0})
	var q Query
	q.Begin(m, "m")
	q.Node("node", "host:7072")
	q.Node("other", "elsewhere:7072")
	m.Match(chain, &q)
	if from, to := m.Wanted(&q, 0, Reach{1, 2, 3, 3, 0}); from != 2 || to != 3 {
		t.Errorf("blocks %d to %d are wanted", from, to)
	}
	if from, to := m.Wanted(&q, 0, q.Reach[0]); from != to {
		t.Errorf("blocks %d to %d are wanted that are in RAM", from, to)
	}
	if from, to := m.Wanted(&q, 1, Reach{1, 2, 3, 3, 0}); from != to {
		t.Error("of a host without a cache")
	}
	var taken []*Promotion
	for range promotions {
		taken = append(taken, m.Promotion(&q, 0, "m", Wait{}))
	}
	if m.Promotion(&q, 0, "m", Wait{}) != nil || m.Stats().PromotionsDropped != 1 {
		t.Errorf("one too many: %+v", m.Stats())
	}
	d.stop()
	for _, p := range taken {
		p.Add((*[32]byte)(&digests[2]))
		p.Before = 2
		m.Ask(p)
	}
	until(t, "all have failed", func() bool {
		s := m.Stats()
		return s.Promotions+s.PromotionsDropped == promotions+1 && len(m.promoter.now.free) == promotions
	})
	if s := m.Stats(); s.PromotionsFailed == 0 || s.Promoted != 0 {
		t.Errorf("%+v", s)
	}
	one := func() {
		p := m.Promotion(&q, 0, "m", Wait{})
		p.Add((*[32]byte)(&digests[2]))
		m.promoter.now.free <- p
	}
	if n := testing.AllocsPerRun(2*promotions, one); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPromotionOfObjects checks which digests name the wanted objects.
func TestPromotionOfObjects(t *testing.T) {
	for _, c := range []struct {
		blocks           int // of an object
		last, n, unknown int // wanted blocks: n up to last with their digests, and unknown ones before
		objects          []int
		before           int
	}{
		{blocks: 1, last: 2, n: 2, unknown: 1, objects: []int{2, 1}, before: 1},
		{blocks: 0, last: 2, n: 3},
		{blocks: 4, last: 9, n: 10, objects: []int{7, 3}},
		{blocks: 4, last: 7, n: 4, unknown: 4, objects: []int{7}, before: 1},
		{blocks: 4, last: 7, n: 2, unknown: 3, objects: []int{7}, before: 1},
		{blocks: 4, last: 7, n: 2, unknown: 2, objects: []int{7}},
		{blocks: 4, last: 9, n: 3, unknown: 7, objects: []int{7}, before: 1},
		{blocks: 4, last: 9, n: 2, unknown: 8},
		{blocks: 2, last: 5, n: 1, unknown: 5, objects: []int{5}, before: 2},
	} {
		p := Promotion{Last: c.last, Before: c.unknown}
		for i := range c.n {
			p.Add(&[32]byte{byte(c.last - i)})
		}
		digests, before := p.objects(c.blocks)
		var objects []int
		for i := 0; i < len(digests); i += 32 {
			objects = append(objects, int(digests[i]))
		}
		if !slices.Equal(objects, c.objects) || before != c.before {
			t.Errorf("%+v: objects %v and %d before", c, objects, before)
		}
	}
}

// TestPromotesObjects brings objects of 64 tokens in two ranks from SSD into RAM. The digests of
// the first ones are unknown, unless the daemon is to wait for them.
func TestPromotesObjects(t *testing.T) {
	t.Run("at once", func(t *testing.T) { promotesObjects(t, 9, 0) })
	t.Run("waiting", func(t *testing.T) { promotesObjects(t, 0, time.Second) })
}

func promotesObjects(t *testing.T, known int, wait time.Duration) {
	const blocks, held = 18, 16
	path, disk := filepath.Join(t.TempDir(), "kv.sock"), &ssd.Options{Dir: t.TempDir(), Cap: 256 << 20}
	d := startDaemonOn(t, path, disk, nil)
	chain, digests := prompt(blocks)
	s := space{Namespace: namespace, layer: block.LayerAll}
	s.Tokens, s.TP = 64, 2
	var objects []block.Addr
	for _, rank := range s.ranks() {
		for end := 3; end < held; end += 4 {
			it := store.Item{Addr: block.Addr{Digest: digests[end], Model: block.IDOf(rank), Layer: s.layer},
				Namespace: rank}
			if end > 3 {
				it.Parent = digests[end-4]
			}
			var names []byte
			for _, digest := range digests[end-3 : end] {
				names = append(names, digest[:block.NameBytes]...)
			}
			it.Attr = block.AppendNames(nil, names)
			if _, err := d.store.Put(t.Context(), it, make([]byte, 100), true); err != nil {
				t.Fatal(err)
			}
			objects = append(objects, it.Addr)
		}
	}
	d.stop()
	d = startDaemonOn(t, path, disk, nil) // everything is on SSD only
	o := static(path)
	o.Promote = PromoteDisk
	m := follow(t, o)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 0, held, held, 0})
	var q Query
	q.Begin(m, "m")
	q.Node("node", "host:7072")
	m.Match(chain, &q)
	if from, to := m.Coming(&q, 0, q.Reach[0], blocks); from != 0 || to != blocks {
		t.Errorf("blocks %d to %d may come", from, to)
	}
	p := m.Promotion(&q, 0, "m", Wait{For: wait, Ended: t.Context()})
	for i := held - 1; i >= known; i-- { // at 9 the last one begins an object
		p.Add((*[32]byte)(&digests[i]))
	}
	p.Last, p.Before = held-1, known
	m.Ask(p)
	until(t, "all objects are in RAM", func() bool { return m.Stats().Promoted == uint64(len(objects)) })
	infos := make([]store.Info, len(objects))
	if err := d.store.StatAll(t.Context(), objects, infos); err != nil {
		t.Fatal(err)
	}
	for i := range infos {
		if infos[i].Tiers != store.RAM|store.SSD {
			t.Errorf("object %d is in %b", i, infos[i].Tiers)
		}
	}
	eventually(t, m, chain, "host:7072", Reach{Unknown, held, held, held, 0})
	d.stop()
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
		<-time.After(time.Millisecond) // no event announces the change
	}
}

func TestSpaces(t *testing.T) {
	var s spaces
	name := func(model string, rank uint32) string {
		n := namespace
		n.Model, n.TP, n.TPRank = model, 2, rank
		return n.String()
	}
	for range 2 {
		s.heard(name("a", 0), 0)
		s.heard(name("b", 0), block.LayerAll)
		s.heard("key1;resp.0;", 0)
	}
	if of := s.of("a", nil); len(of) != 1 || of[0].text != name("a", 0) || len(of[0].ranks()) != 2 ||
		of[0].ranks()[1] != name("a", 1) {
		t.Errorf("%+v", of)
	}
	if of := s.of("unknown", nil); len(of) != 2 || of[0].Model != "b" {
		t.Errorf("%+v", of)
	}
	for i := range 2 * maxSpaces {
		s.heard(name("a", 0), uint32(i))
	}
	if len(s.list) != maxSpaces || len(s.of("a", nil)) != promoteSpaces {
		t.Errorf("%d are remembered", len(s.list))
	}
}
