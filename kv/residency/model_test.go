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
	blocks  map[at]Tiers
	numbers map[string]uint64
	epochs  map[string]uint64
	where   map[Name]int // number of a block in its chain
	leader  map[Name]uint64
	chains  [][]block.Digest
	spaces  []string
}

func newTruth(o Options) *truth {
	m := &truth{x: New(o), blocks: map[at]Tiers{}, numbers: map[string]uint64{}, epochs: map[string]uint64{},
		where: map[Name]int{}, leader: map[Name]uint64{}}
	for i := range 4 {
		chain := chainOf(fmt.Sprint(i/2), 40)
		if i%2 == 1 { // parts from the preceding chain
			for j := 20; j < len(chain); j++ {
				chain[j] = block.Next(chain[j-1], &[block.Tokens]uint32{uint32(j), 1})
			}
		}
		m.chains = append(m.chains, chain)
		for j, d := range chain {
			m.where[NameOf(&d)], m.leader[NameOf(&d)] = j, prefixOf(chain[j-j%GroupBlocks])
		}
	}
	m.spaces = []string{spaceOf("a", 0), spaceOf("a", 1), spaceOf("b", 0)}
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

// own changes the blocks in the daemon's tiers.
func (m *truth) own(space string, chain []block.Digest, i int, layer uint32, tier Tiers, present bool) {
	c := change(space, chain, i, tier, present)
	c.Addr.Layer = layer
	m.x.Apply(c)
	k := at{"", space, layer, NameOf(&chain[i])}
	if present {
		m.note(k, tier, 0)
	} else {
		m.note(k, 0, tier)
	}
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
			k := at{engine, e.Namespace, block.LayerAll, NameOf(&d)}
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
	have, missing := got.all(), 0
	for k, tiers := range m.blocks {
		if !all && (k.space == m.spaces[1] || k.layer != 0 && k.layer != block.LayerAll) {
			missing++
			continue
		}
		b, ok := have[k]
		if !ok || b.Tiers != tiers {
			t.Fatalf("%v: is in %b, told %b (%v)", k, tiers, b.Tiers, ok)
		}
		if b.Position != 0 && (int(b.Position) != m.where[k.digest]+1 || b.Leader != m.leader[k.digest]) {
			t.Fatalf("%v: block %d of leader %x is told to be %d of %x", k, m.where[k.digest], m.leader[k.digest],
				b.Position-1, b.Leader)
		}
	}
	if len(have) != len(m.blocks)-missing {
		t.Fatalf("%d blocks are told of, %d are there", len(have), len(m.blocks)-missing)
	}
}

// TestConverges makes random changes while watchers join, read now and then, fall behind, resume
// and leave.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTruth(Options{Ring: rapid.SampledFrom([]int{8, 64, 1024}).Draw(t, "ring")})
		type reader struct {
			*Watcher
			mirror
			batch Batch
		}
		var readers []*reader
		for range rapid.IntRange(10, 400).Draw(t, "steps") {
			chain := rapid.SampledFrom(m.chains).Draw(t, "chain")
			i := rapid.IntRange(0, len(chain)-1).Draw(t, "block")
			space := rapid.SampledFrom(m.spaces).Draw(t, "space")
			engine := rapid.SampledFrom([]string{"e1", "e2", "e3"}).Draw(t, "engine")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2, 3:
				layer := rapid.SampledFrom([]uint32{0, 1, block.LayerAll}).Draw(t, "layer")
				m.own(space, chain, i, layer, rapid.SampledFrom([]Tiers{Host, Disk}).Draw(t, "tier"),
					rapid.Bool().Draw(t, "present"))
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
				if len(readers) < 4 {
					readers = append(readers,
						&reader{Watcher: m.x.Watch(WatchOptions{All: rapid.Bool().Draw(t, "all")})})
				}
			}
			for _, r := range readers {
				if rapid.IntRange(0, 9).Draw(t, "reads") > 6 {
					if _, done := r.step(&r.batch); done {
						must(t, r.apply(&r.batch))
					}
				}
				if r.synced && rapid.IntRange(0, 19).Draw(t, "reconnects") == 0 {
					r.Watcher.Close()
					r.Watcher = m.x.Watch(WatchOptions{All: r.Watcher.all, Epoch: m.x.Epoch(), After: r.due - 1})
				}
			}
		}
		for _, r := range readers {
			for {
				wake, done := r.step(&r.batch)
				if done {
					must(t, r.apply(&r.batch))
				} else if wake != nil {
					break
				}
			}
			m.compare(t, &r.mirror, r.Watcher.all)
			r.Watcher.Close()
		}
		if st := m.x.Stats(); st.Watchers != 0 || st.Blocks != int64(len(m.blocks)) || st.Overflow != 0 {
			t.Fatalf("%+v with %d blocks", st, len(m.blocks))
		}
	})
}

// TestConvergesAtOnce does the same with goroutines, for the race detector.
func TestConvergesAtOnce(t *testing.T) {
	m := newTruth(Options{Ring: 256})
	seed := rand.Uint64()
	t.Log("seed", seed)
	const rounds = 4000
	var writers, reading sync.WaitGroup
	writers.Go(func() {
		r := rand.New(rand.NewPCG(seed, 1))
		for range rounds {
			chain := m.chains[r.IntN(len(m.chains))]
			m.own(m.spaces[r.IntN(3)], chain, r.IntN(len(chain)), block.LayerAll, Host, r.IntN(2) == 0)
		}
	})
	var engines []*truth // each engine has a truth of its own
	for i := range 2 {
		e := &truth{x: m.x, blocks: map[at]Tiers{}, numbers: map[string]uint64{}, epochs: map[string]uint64{},
			chains: m.chains, spaces: m.spaces}
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
