package holdings

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
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
	d.put(digests, 0, 3, true)
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
		taken = append(taken, m.Promotion(&q, 0, "m"))
	}
	if m.Promotion(&q, 0, "m") != nil || m.Stats().PromotionsDropped != 1 {
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
		return s.Promotions == promotions && len(m.promoter.free) == promotions
	})
	if s := m.Stats(); s.PromotionsFailed == 0 || s.Promoted != 0 {
		t.Errorf("%+v", s)
	}
	one := func() {
		p := m.Promotion(&q, 0, "m")
		p.Add((*[32]byte)(&digests[2]))
		m.promoter.free <- p
	}
	if n := testing.AllocsPerRun(2*promotions, one); n != 0 {
		t.Errorf("%v allocations", n)
	}
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
		s.heard(name("a", 0), 0, 0)
		s.heard(name("b", 0), block.LayerAll, 0)
		s.heard("key1;resp.0;", 0, 0)
	}
	if of := s.of("a"); len(of) != 1 || of[0].text != name("a", 0) || len(of[0].ranks()) != 2 ||
		of[0].ranks()[1] != name("a", 1) {
		t.Errorf("%+v", of)
	}
	if of := s.of("unknown"); len(of) != 2 || of[0].Model != "b" {
		t.Errorf("%+v", of)
	}
	for i := range 2 * maxSpaces {
		s.heard(name("a", 0), uint32(i), 0)
	}
	if len(s.list) != maxSpaces || len(s.of("a")) != promoteSpaces {
		t.Errorf("%d are remembered", len(s.list))
	}
}
