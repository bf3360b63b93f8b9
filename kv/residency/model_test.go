package residency

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/block"
)

// truth is the expected state, in plain maps.
type truth struct {
	x       *Index
	blocks  map[at]Tiers  // of engines, and objects of the daemon's tiers by their last block
	holds   map[at][]Name // blocks of the object that ends with a block, if it has several
	numbers map[string]uint64
	epochs  map[string]uint64
	where   map[Name]int // number of a block in its chain
	leader  map[Name]uint64
	chains  [][]block.Digest
	spaces  []string
}

// newTruth makes pairs of chains that part in the middle of every object with more than 2 blocks.
func newTruth(o Options, chains, blocks int) *truth {
	m := &truth{x: New(o), blocks: map[at]Tiers{}, numbers: map[string]uint64{}, epochs: map[string]uint64{},
		where: map[Name]int{}, leader: map[Name]uint64{}, holds: map[at][]Name{}}
	for i := range chains {
		chain := chainOf(fmt.Sprint(i/2), blocks)
		if i%2 == 1 { // parts from the preceding chain
			for j := blocks/8*4 + 2; j < len(chain); j++ {
				chain[j] = block.Next(chain[j-1], &[block.Tokens]uint32{uint32(j), 1})
			}
		}
		m.chains = append(m.chains, chain)
		for j, d := range chain {
			m.where[block.NameOf(&d)], m.leader[block.NameOf(&d)] = j, prefixOf(chain[j-j%GroupBlocks])
		}
	}
	m.spaces = append(ranksOf("a", 16, 2, 1), spaceOf("b"))
	return m
}

func (m *truth) note(k at, add, remove Tiers) {
	if t := (m.blocks[k] | add) &^ remove; t != 0 {
		m.blocks[k] = t
	} else {
		delete(m.blocks, k)
	}
}

func (m *truth) forget(engine string) {
	for k := range m.blocks {
		if k.engine == engine {
			delete(m.blocks, k)
		}
	}
}

// own changes the object in the daemon's tiers that has block i of a chain.
func (m *truth) own(space string, chain []block.Digest, i int, layer uint32, tier Tiers, present, named bool) {
	n, err := block.ParseNamespace(space)
	if err != nil {
		panic(err)
	}
	blocks := max(n.Blocks(), 1)
	from, to := i/blocks*blocks, i/blocks*blocks+blocks-1
	c := object(space, chain, from, to, tier, present, named)
	c.Addr.Layer = layer
	m.x.Apply(c)
	k := at{"", space, layer, block.NameOf(&chain[to])}
	if blocks > 1 {
		var names []Name
		for _, d := range chain[from : to+1] {
			names = append(names, block.NameOf(&d))
		}
		m.holds[k] = names
	}
	switch {
	case !present:
		m.note(k, 0, tier)
	case n.Blocks() == 1, n.Blocks() > 1 && (named || m.blocks[k] != 0):
		m.note(k, tier, 0)
	}
}

// expected returns the blocks for a watcher with All.
func (m *truth) expected() map[at]Tiers {
	out := map[at]Tiers{}
	for k, tiers := range m.blocks {
		n, _ := block.ParseNamespace(k.space)
		if k.engine != "" || n.Blocks() == 1 {
			out[k] |= tiers
			continue
		}
		for _, name := range m.holds[k] {
			out[at{"", k.space, k.layer, name}] |= tiers
		}
	}
	return out
}

// counting returns the blocks that count for routers.
func (m *truth) counting() map[at]Tiers {
	all, out := m.expected(), map[at]Tiers{}
	for k, tiers := range all {
		n, _ := block.ParseNamespace(k.space)
		if n.TPRank+n.PPRank > 0 || k.layer != 0 && k.layer != block.LayerAll {
			continue
		}
		if k.engine == "" {
			inRAM, onDisk, there := true, true, true
			for _, rank := range ranksOf(n.Model, n.Tokens, n.TP, n.PP) {
				t := all[at{"", rank, k.layer, k.digest}]
				inRAM, onDisk, there = inRAM && t&Host != 0, onDisk && t&Disk != 0, there && t != 0
			}
			if tiers = 0; inRAM {
				tiers = Host
			}
			if there && (!inRAM || onDisk) {
				tiers |= Disk
			}
		}
		if tiers != 0 {
			out[k] = tiers
		}
	}
	return out
}

// report makes an engine's report.
func (m *truth) report(engine string, fresh bool, events ...Event) error {
	if fresh {
		m.epochs[engine]++
		m.forget(engine)
	}
	m.numbers[engine]++
	for _, e := range events {
		if e.Kind == Cleared {
			m.forget(engine)
		}
		for _, d := range e.Digests {
			k := at{engine, e.Namespace, block.LayerAll, block.NameOf(&d)}
			if e.Kind == Stored {
				m.note(k, e.Tier, 0)
			} else {
				m.note(k, 0, e.Tier)
			}
		}
	}
	return m.x.Report(&Report{Engine: engine, Epoch: m.epochs[engine], Number: m.numbers[engine], Fresh: fresh,
		Events: events})
}

// compare compares a mirror with the truth: the same blocks in the same tiers, and no wrong
// position.
func (m *truth) compare(t interface{ Fatalf(string, ...any) }, got *mirror, all bool) {
	have, want := got.all(), m.counting()
	if all {
		want = m.expected()
	}
	for k, tiers := range want {
		b, ok := have[k]
		if !ok || b.Tiers != tiers {
			t.Fatalf("%v: is in %b, told %b (%v)", k, tiers, b.Tiers, ok)
		}
		if b.Position != 0 && (int(b.Position) != m.where[k.digest]+1 || b.Leader != m.leader[k.digest]) {
			t.Fatalf("%v: block %d of leader %x is told to be %d of %x", k, m.where[k.digest], m.leader[k.digest],
				b.Position-1, b.Leader)
		}
	}
	if len(have) != len(want) {
		t.Fatalf("%d blocks are told of, %d are there", len(have), len(want))
	}
}

// reader is a watcher with the state that it has read.
type reader struct {
	*Watcher
	mirror
	batch Batch
}

// readers are the watchers of a property test.
type readers struct {
	m   *truth
	all []*reader
}

// join begins to watch, unless 4 do.
func (r *readers) join(t *rapid.T) {
	if len(r.all) < 4 {
		r.all = append(r.all, &reader{Watcher: r.m.x.Watch(WatchOptions{All: rapid.Bool().Draw(t, "all")})})
	}
}

// act makes some watchers read a batch, and some begin anew after their last change.
func (rs *readers) act(t *rapid.T) {
	for _, r := range rs.all {
		if rapid.IntRange(0, 9).Draw(t, "reads") > 6 {
			if _, done := r.step(&r.batch); done {
				must(t, r.apply(&r.batch))
			}
		}
		if r.synced && rapid.IntRange(0, 19).Draw(t, "reconnects") == 0 {
			r.Watcher.Close()
			r.Watcher = rs.m.x.Watch(WatchOptions{All: r.Watcher.all, Epoch: rs.m.x.Epoch(), After: r.due - 1})
		}
	}
}

// end reads what is left and compares all watchers, and two new ones, with the truth.
func (rs *readers) end(t *rapid.T) {
	for _, all := range []bool{false, true} {
		rs.all = append(rs.all, &reader{Watcher: rs.m.x.Watch(WatchOptions{All: all})})
	}
	for _, r := range rs.all {
		for {
			wake, done := r.step(&r.batch)
			if done {
				must(t, r.apply(&r.batch))
			} else if wake != nil {
				break
			}
		}
		rs.m.compare(t, &r.mirror, r.Watcher.all)
		r.Watcher.Close()
	}
	if st, want := rs.m.x.Stats(), len(rs.m.expected()); st.Watchers != 0 || st.Blocks != int64(want) ||
		st.Overflow != 0 {
		t.Fatalf("%+v with %d blocks", st, want)
	}
}

// TestConverges makes random changes while watchers join, read now and then, fall behind, resume
// and leave.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTruth(Options{Ring: rapid.SampledFrom([]int{8, 64, 1024}).Draw(t, "ring")}, 4, 40)
		watchers := readers{m: m}
		for range rapid.IntRange(10, 400).Draw(t, "steps") {
			chain := m.chains[rapid.IntRange(0, len(m.chains)-1).Draw(t, "chain")]
			i := rapid.IntRange(0, len(chain)-1).Draw(t, "block")
			space := rapid.SampledFrom(m.spaces).Draw(t, "space")
			engine := rapid.SampledFrom([]string{"e1", "e2", "e3"}).Draw(t, "engine")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2, 3:
				layer := rapid.SampledFrom([]uint32{0, 1, block.LayerAll}).Draw(t, "layer")
				m.own(space, chain, i, layer, rapid.SampledFrom([]Tiers{Host, Disk}).Draw(t, "tier"),
					rapid.Bool().Draw(t, "present"), false)
			case 4, 5:
				e := Event{Kind: Stored, Namespace: space, Tier: Device, Digests: chain[i:]}
				if i > 0 {
					e.Parent = chain[i-1]
				}
				must(t, m.report(engine, m.epochs[engine] == 0, e))
			case 6:
				must(t, m.report(engine, m.epochs[engine] == 0, Event{Kind: Removed, Namespace: space, Tier: Device,
					Digests: chain[i:min(len(chain), i+9)]}))
			case 7:
				must(t, m.report(engine, true))
			case 8:
				must(t, m.report(engine, m.epochs[engine] == 0, Event{Kind: Cleared}))
			case 9:
				watchers.join(t)
			}
			watchers.act(t)
		}
		watchers.end(t)
	})
}

// TestObjectsConverge makes objects of several sizes come and go in both tiers and in all ranks of
// their engines, with names and without. Prompts share the beginnings of objects.
func TestObjectsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTruth(Options{Ring: rapid.SampledFrom([]int{8, 64, 1024}).Draw(t, "ring")}, 2, 12)
		m.spaces = nil
		for _, tokens := range []uint32{16, 24, 32, 64} {
			shape := rapid.SampledFrom([][2]uint32{{1, 1}, {2, 1}, {2, 2}}).Draw(t, "ranks")
			m.spaces = append(m.spaces, ranksOf(fmt.Sprint("m", tokens), tokens, shape[0], shape[1])...)
		}
		watchers := readers{m: m}
		for range rapid.IntRange(10, 300).Draw(t, "steps") {
			chain := m.chains[rapid.IntRange(0, len(m.chains)-1).Draw(t, "chain")]
			i := rapid.IntRange(0, len(chain)-1).Draw(t, "block")
			space := rapid.SampledFrom(m.spaces).Draw(t, "space")
			switch what := rapid.IntRange(0, 19).Draw(t, "what"); what {
			case 17:
				e := Event{Kind: Stored, Namespace: space, Tier: Device, Digests: chain[i:]}
				if i > 0 {
					e.Parent = chain[i-1]
				}
				must(t, m.report("e", m.epochs["e"] == 0, e))
			case 18:
				must(t, m.report("e", true))
			case 19:
				watchers.join(t)
			default:
				ranks := []string{space}
				if n, _ := block.ParseNamespace(space); what < 8 { // all ranks of a block
					ranks = ranksOf(n.Model, n.Tokens, n.TP, n.PP)
				}
				layer := rapid.SampledFrom([]uint32{1, block.LayerAll, block.LayerAll, block.LayerAll}).Draw(t, "layer")
				tier := rapid.SampledFrom([]Tiers{Host, Disk}).Draw(t, "tier")
				present, named := rapid.IntRange(0, 4).Draw(t, "present") > 1, rapid.IntRange(0, 4).Draw(t, "named") > 0
				for _, rank := range ranks {
					m.own(rank, chain, i, layer, tier, present, named)
				}
			}
			watchers.act(t)
		}
		watchers.end(t)
		if w := m.x.own.waiting; len(w) == 0 && len(m.x.own.shared) > len(m.expected()) {
			t.Fatalf("%d blocks are shared", len(m.x.own.shared))
		}
		for k := range m.blocks { // everything goes
			if k.engine == "" {
				gone := Change{Addr: block.Addr{Digest: m.digest(k.digest), Model: block.IDOf(k.space), Layer: k.layer},
					Namespace: k.space}
				for _, gone.Tier = range []Tiers{Host, Disk} {
					m.x.Apply(&gone)
				}
			}
		}
		if st := m.x.Stats(); st.OwnBlocks != 0 || m.x.own.shared != nil {
			t.Fatalf("%d blocks are left, %d shared", st.OwnBlocks, len(m.x.own.shared))
		}
	})
}

// digest returns the digest with a name.
func (m *truth) digest(name Name) (d block.Digest) {
	for _, chain := range m.chains {
		for _, d = range chain {
			if block.NameOf(&d) == name {
				return d
			}
		}
	}
	return d
}

// TestConvergesAtOnce does the same with goroutines, for the race detector.
func TestConvergesAtOnce(t *testing.T) {
	m := newTruth(Options{Ring: 256}, 4, 40)
	seed := rand.Uint64()
	t.Log("seed", seed)
	const rounds = 4000
	var writers, reading sync.WaitGroup
	writers.Go(func() {
		r := rand.New(rand.NewPCG(seed, 1))
		for range rounds {
			chain := m.chains[r.IntN(len(m.chains))]
			m.own(m.spaces[r.IntN(3)], chain, r.IntN(len(chain)), block.LayerAll, Host, r.IntN(2) == 0, false)
		}
	})
	var engines []*truth // each engine has a truth of its own
	for i := range 2 {
		e := &truth{x: m.x, blocks: map[at]Tiers{}, numbers: map[string]uint64{}, epochs: map[string]uint64{},
			holds: map[at][]Name{}, chains: m.chains, spaces: m.spaces}
		r := rand.New(rand.NewPCG(seed, uint64(2+i)))
		writers.Go(func() {
			if err := e.reportAll(fmt.Sprint("e", i), r, rounds/8); err != nil {
				t.Error(err)
			}
		})
		engines = append(engines, e)
	}
	end := make(chan struct{})
	mirrors := make([]mirror, 3)
	watchers := make([]*Watcher, len(mirrors))
	for i := range mirrors {
		watchers[i] = m.x.Watch(WatchOptions{All: true})
		reading.Go(func() {
			if err := mirrors[i].follow(watchers[i], end); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	for _, e := range engines {
		maps.Copy(m.blocks, e.blocks)
	}
	close(end)
	reading.Wait()
	for i := range mirrors {
		mirrors[i].drain(t, watchers[i])
		watchers[i].Close()
	}
	m.compareAll(t, mirrors)
}

// reportAll makes random reports of an engine.
func (m *truth) reportAll(engine string, r *rand.Rand, times int) error {
	for n := range times {
		chain := m.chains[r.IntN(len(m.chains))]
		from := r.IntN(len(chain) - 1)
		event := Event{Kind: Kind(1 + r.IntN(2)), Namespace: m.spaces[0], Tier: Device, Digests: chain[from+1:],
			Parent: chain[from]}
		if err := m.report(engine, n%100 == 0, event); err != nil {
			return err
		}
	}
	return nil
}

// follow applies a watcher's batches until end is closed and nothing is left to read.
func (m *mirror) follow(w *Watcher, end <-chan struct{}) error {
	var b Batch
	for {
		wake, done := w.step(&b)
		switch {
		case done:
			if err := m.apply(&b); err != nil {
				return err
			}
		case wake != nil:
			select {
			case <-wake:
			case <-end:
				return nil
			}
		}
	}
}

// compareAll compares mirrors with the truth. compareAll compares positions, which the truth does
// not have, between the mirrors.
func (m *truth) compareAll(t *testing.T, mirrors []mirror) {
	if len(m.blocks) == 0 {
		t.Error("nothing is left to compare")
	}
	first := mirrors[0].all()
	for i := range mirrors {
		have := mirrors[i].all()
		if len(have) != len(first) || int64(len(have)) != m.x.Stats().Blocks {
			t.Errorf("watcher %d knows %d blocks, the first %d, there are %d", i, len(have), len(first),
				m.x.Stats().Blocks)
		}
		for k, b := range have {
			if w := first[k]; w.Tiers != b.Tiers || w.Position != b.Position || w.Leader != b.Leader {
				t.Fatalf("%v: %+v and %+v", k, b, w)
			}
		}
		for k, tiers := range m.blocks {
			if have[k].Tiers != tiers {
				t.Fatalf("%v: in %b, told %b", k, tiers, have[k].Tiers)
			}
		}
	}
}

type fataler interface {
	Fatal(...any)
	Helper()
}

func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
