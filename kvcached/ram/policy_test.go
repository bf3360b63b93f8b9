package ram

import (
	"errors"
	"io"
	"math"
	"os"
	"testing"

	"github.com/cognitora/dataplane/kv/accesses"
	"github.com/cognitora/dataplane/perf/evict"
	"github.com/cognitora/dataplane/perf/trace"
)

// replayed is a Tier as a policy of package evict: each block takes one granule.
type replayed struct {
	*ours
	t testing.TB
}

func (p replayed) Len() int { return p.blocks }

func (p replayed) Request(keys []uint32) (leading, hits int) {
	stamp := p.Stamp(len(keys)) + uint64(len(keys))
	for i, k := range keys {
		stamp--
		if id := p.find(int(k)); id != 0 {
			p.Use(id, stamp)
			if hits++; leading == i {
				leading++
			}
		}
	}
	p.Store(keys)
	stamp = p.Stamp(len(keys)) + uint64(len(keys))
	for _, k := range keys {
		stamp--
		if id := p.find(int(k)); id != 0 {
			p.Touch(id, stamp)
		}
	}
	return leading, hits
}

func (p replayed) Store(keys []uint32) {
	parent := -1
	for _, k := range keys {
		if p.find(int(k)) == 0 {
			if _, err := p.putUnder(int(k), parent, 1); err != nil {
				p.t.Fatal(err)
			}
		}
		parent = int(k)
	}
}

func asPolicy(t testing.TB) evict.Maker {
	return evict.Maker{Name: "this tier", New: func(capacity, _ int) evict.Policy {
		o := newOurs(t, int64(capacity)*Granule, 0)
		return replayed{o, t}
	}}
}

var shares = []float64{.05, .1, .2, .4} // of the working set

// TestModel replays generated requests and compares the tier with its model in package evict.
func TestModel(t *testing.T) {
	for seed := range uint64(4) {
		tr := generated(t, trace.Generator{Seed: seed, Requests: 3000})
		for _, share := range shares {
			got, want := evict.Replay(tr, asPolicy(t), share), evict.Replay(tr, maker(t, evict.Ours), share)
			t.Logf("seed %d, %2.0f %% of the working set: %.4f are found, %.4f in the model", seed, 100*share,
				got.Prefix, want.Prefix)
			if math.Abs(got.Prefix-want.Prefix) > .002 {
				t.Errorf("seed %d, %g: %.4f of blocks are found, %.4f in the model", seed, share, got.Prefix,
					want.Prefix)
			}
		}
	}
}

func maker(t testing.TB, name string) evict.Maker {
	for _, m := range evict.Makers() {
		if m.Name == name {
			return m
		}
	}
	t.Fatal("no policy", name)
	return evict.Maker{}
}

// TestHitRatio compares the tier's hit ratio with that of published policies. The trace is the one
// that CGN_TRACE names, a public one, or else a generated one. On short generated traces with other
// seeds, the hit ratio of LRU is up to one percentage point higher.
func TestHitRatio(t *testing.T) {
	tr := generated(t, trace.Generator{Requests: 3000})
	if name := os.Getenv("CGN_TRACE"); name != "" {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if tr, err = accesses.Read(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, share := range shares {
		got := evict.Replay(tr, asPolicy(t), share).Prefix
		for _, name := range []string{"lru", "sieve", "s3-fifo", "w-tinylfu", "arc"} {
			slack := 0.0
			if name == "arc" {
				slack = .01
			}
			want := evict.Replay(tr, maker(t, name), share).Prefix
			t.Logf("%2.0f %% of the working set: %.4f are found, %.4f by %s", 100*share, got, want, name)
			if got < want-slack {
				t.Errorf("%g: %.4f of blocks are found, %.4f by %s", share, got, want, name)
			}
		}
	}
}

func generated(t testing.TB, g trace.Generator) *accesses.Trace {
	tr := accesses.NewTrace()
	for source := g.Source(); ; {
		q, err := source.Next()
		if errors.Is(err, io.EOF) {
			return tr
		}
		if err != nil {
			t.Fatal(err)
		}
		tr.Add(accesses.Line{Timestamp: q.Timestamp, HashIDs: q.HashIDs})
	}
}
