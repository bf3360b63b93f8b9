package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/block"
)

// model is the state that a client may expect of a store.
type model struct {
	s       *Store
	dir     string
	t       *testing.T
	last    map[int][]byte // payload that was put last and not deleted
	durable map[int]bool   // the last put was durable
	held    []heldBlock
}

type heldBlock struct {
	b    *Block
	want []byte
}

func (m *model) open() { m.s, _ = tiered(m.t, m.dir, Options{RAM: 1 << 20}) }

func (m *model) draw(r *rapid.T) (int, Item) {
	n := rapid.IntRange(1, 12).Draw(r, "block")
	it := item(n, true)
	if n%2 == 0 {
		it.Key, it.Attr = []byte{byte(n)}, fill(n, 'a')
	}
	return n, it
}

func (m *model) put(r *rapid.T) {
	n, it := m.draw(r)
	payload := bytes.Repeat([]byte{rapid.Byte().Draw(r, "byte")}, rapid.IntRange(0, 300_000).Draw(r, "length"))
	o := CommitOptions{Durable: rapid.IntRange(0, 3).Draw(r, "durable") == 0,
		IfAbsent: rapid.IntRange(0, 3).Draw(r, "new") == 0}
	d, err := m.s.Create(ctx, it, len(payload))
	if errors.Is(err, ErrFull) {
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	copy(d.Bytes(), payload)
	switch _, err := d.Commit(ctx, o); {
	case err == nil && o.IfAbsent && m.durable[n]:
		r.Fatal("a durable block was taken for absent")
	case err == nil:
		m.last[n], m.durable[n] = payload, o.Durable
	case errors.Is(err, ErrExists) && o.IfAbsent && m.last[n] != nil:
	default:
		r.Fatal(err)
	}
}

func (m *model) get(r *rapid.T) {
	n, it := m.draw(r)
	b, err := m.s.Get(ctx, it.Addr)
	switch want := m.last[n]; {
	case errors.Is(err, ErrFull) && len(m.held) > 0:
	case errors.Is(err, ErrMiss) && m.durable[n]:
		r.Fatalf("durable block %d is not there", n)
	case errors.Is(err, ErrMiss):
	case err != nil:
		r.Fatal(err)
	case want == nil:
		r.Fatalf("block %d is there after it was deleted", n)
	case !bytes.Equal(b.Bytes(), want) || !bytes.Equal(b.Info().Item.Key, it.Key) ||
		!bytes.Equal(b.Info().Item.Attr, it.Attr):
		r.Fatalf("block %d has other bytes", n)
	case len(m.held) < 2 && rapid.Bool().Draw(r, "hold"):
		m.held = append(m.held, heldBlock{b, want})
	default:
		b.Release()
	}
}

func (m *model) release(*rapid.T) {
	for _, h := range m.held {
		if !bytes.Equal(h.b.Bytes(), h.want) {
			m.t.Error("a reader's bytes changed")
		}
		h.b.Release()
	}
	m.held = nil
}

func (m *model) remove(r *rapid.T) {
	n, it := m.draw(r)
	there, err := m.s.Delete(ctx, it.Addr)
	if err != nil || there && m.last[n] == nil || !there && m.durable[n] {
		r.Fatal(n, there, err)
	}
	delete(m.last, n)
	delete(m.durable, n)
}

func (m *model) stat(r *rapid.T) {
	addrs := prompt(12)
	out := make([]Info, len(addrs))
	if err := m.s.StatAll(ctx, addrs, out); err != nil {
		r.Fatal(err)
	}
	for i := range out {
		want, known := m.last[i+1]
		if there := out[i].Tiers != 0; there && (!known || out[i].CRC != block.Sum(want)) || !there && m.durable[i+1] {
			r.Fatalf("block %d: %+v", i+1, out[i])
		}
	}
}

func (m *model) purge(r *rapid.T) {
	if _, err := m.s.Purge(ctx, func(ns string, _ []byte) bool { return ns == llama }); err != nil {
		r.Fatal(err)
	}
	clear(m.last)
	clear(m.durable)
}

// TestModel calls all operations in random order on a small arena, with restarts in between.
func TestModel(t *testing.T) {
	m := &model{t: t, dir: t.TempDir(), last: map[int][]byte{}, durable: map[int]bool{}}
	m.open()
	if os.Getenv("CGN_SOAK") == "" {
		if err := flag.Set("rapid.checks", "10"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		for n := range 12 {
			if _, err := m.s.Delete(ctx, item(n+1, true).Addr); err != nil {
				r.Fatal(err)
			}
		}
		clear(m.last)
		clear(m.durable)
		r.Repeat(map[string]func(*rapid.T){
			"put": m.put, "put again": m.put, "get": m.get, "get again": m.get, "release": m.release,
			"delete": m.remove, "stat": m.stat,
			"touch": func(*rapid.T) { m.s.Touch(prompt(12)) },
			"calm":  func(*rapid.T) { calm(m.s) },
			"rarely": func(r *rapid.T) {
				switch rapid.IntRange(0, 9).Draw(r, "what") {
				case 0:
					m.purge(r)
				case 1:
					m.release(r)
					if err := m.s.Close(); err != nil {
						r.Fatal(err)
					}
					m.open()
				}
			},
		})
		m.release(r)
	})
}

// history is the progress of one block's writer: the last version that it has begun, and the last
// that it has completed.
type history struct {
	begun, done atomic.Uint64
	deleted     sync.Map // versions that are deletions
	durable     sync.Map // versions that are durable
}

// version returns a payload that repeats its version number.
func version(v uint64, n int) []byte {
	p := make([]byte, 8*(1+n))
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], v)
	}
	return p
}

// TestNeverOld runs one writer for each of a few blocks, and readers of all, in an arena that is
// too small for them. No reader may get a deleted version, a mixture, or a version older than the
// last acknowledged one.
func TestNeverOld(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{RAM: 512 << 10})
	const blocks, versions = 6, 150
	var all [blocks]history
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for n := range all {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			for v := uint64(1); v <= versions; v++ {
				all[n].write(t, s, n, v, rng)
			}
		})
	}
	for g := range 3 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(g)))
			for {
				select {
				case <-stop:
					return
				default:
					n := rng.IntN(blocks)
					all[n].read(t, s, n)
					calm(s)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	st := s.Stats()
	t.Logf("%+v", st.Counts)
	if st.Promotions == 0 || st.WrittenBehind == 0 {
		t.Error("no block went to SSD and back")
	}
}

func (h *history) write(t *testing.T, s *Store, n int, v uint64, rng *rand.Rand) {
	kind := rng.IntN(5)
	if kind == 0 {
		h.deleted.Store(v, true)
	}
	if kind == 1 {
		h.durable.Store(v, true)
	}
	h.begun.Store(v)
	var err error
	if kind == 0 {
		_, err = s.Delete(ctx, item(n, false).Addr)
	} else {
		_, err = s.Put(ctx, item(n, false), version(v, rng.IntN(20_000)), kind == 1)
		for errors.Is(err, ErrFull) {
			_, err = s.Put(ctx, item(n, false), version(v, 10), kind == 1)
		}
	}
	if err != nil {
		t.Error(err)
	}
	h.done.Store(v)
}

func (h *history) read(t *testing.T, s *Store, n int) {
	done := h.done.Load()
	b, err := s.Get(ctx, item(n, false).Addr)
	begun := h.begun.Load()
	if errors.Is(err, ErrFull) {
		return
	}
	if err != nil {
		if _, durable := h.durable.Load(done); durable && begun == done || !errors.Is(err, ErrMiss) {
			t.Errorf("block %d, version %d: %v", n, done, err)
		}
		return
	}
	defer b.Release()
	p := b.Bytes()
	v := binary.LittleEndian.Uint64(p)
	if _, deleted := h.deleted.Load(v); v < done || v > begun || deleted {
		t.Errorf("block %d: version %d after %d was done", n, v, done)
	}
	if !bytes.Equal(p, version(v, len(p)/8-1)) {
		t.Errorf("block %d: version %d is mixed with another", n, v)
	}
}

// TestMany reads, writes and deletes from many goroutines. A payload must be the one that was put
// at its address.
func TestMany(t *testing.T) {
	s := open(t, Options{RAM: 2 << 20})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 2000 {
				n := 1 + rng.IntN(40)
				it := item(n, true)
				switch rng.IntN(10) {
				case 0, 1, 2:
					if _, err := s.Put(ctx, it, fill(rng.IntN(200_000), byte(n)), false); err != nil &&
						!errors.Is(err, ErrFull) {
						t.Error(err)
					}
				case 3:
					if _, err := s.Delete(ctx, it.Addr); err != nil {
						t.Error(err)
					}
				case 4:
					s.Touch([]block.Addr{it.Addr, item(n+1, true).Addr})
				default:
					b, err := s.Get(ctx, it.Addr)
					if err != nil {
						continue
					}
					if info := b.Info(); block.Sum(b.Bytes()) != info.CRC ||
						len(b.Bytes()) > 0 && b.Bytes()[0] != byte(n) {
						t.Errorf("block %d is wrong", n)
					}
					b.Release()
				}
			}
		})
	}
	wg.Wait()
}
