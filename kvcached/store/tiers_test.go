package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// gate wraps the SSD tier of a store. A method of the tier calls its hook first, if the hook is
// set.
type gate struct {
	disk
	mu                 sync.Mutex
	read, write, erase func() error
	scan, settle       func() error // scan: SSD lists no block
}

func (g *gate) set(read, write, erase func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read, g.write, g.erase = read, write, erase
}

func (g *gate) pass(hook *func() error) error {
	g.mu.Lock()
	f := *hook
	g.mu.Unlock()
	if f == nil {
		return nil
	}
	return f()
}

func (g *gate) Read(ctx context.Context, a block.Addr, dst []byte) (ssd.Info, error) {
	if err := g.pass(&g.read); err != nil {
		return ssd.Info{}, err
	}
	return g.disk.Read(ctx, a, dst)
}

func (g *gate) Write(ctx context.Context, r ssd.Record, payload []byte, durable bool) error {
	if err := g.pass(&g.write); err != nil {
		return err
	}
	return g.disk.Write(ctx, r, payload, durable)
}

func (g *gate) Delete(ctx context.Context, addrs ...block.Addr) (int, error) {
	if err := g.pass(&g.erase); err != nil {
		return 0, err
	}
	return g.disk.Delete(ctx, addrs...)
}

func (g *gate) Scan(ctx context.Context, cursor uint64, visit func(ssd.Info) bool) (uint64, error) {
	if g.scan != nil {
		return 0, g.scan()
	}
	return g.disk.Scan(ctx, cursor, visit)
}

func (g *gate) Settle() error {
	if g.settle != nil {
		return g.settle()
	}
	return g.disk.Settle()
}

// tiered opens a store with an SSD tier in dir.
func tiered(t testing.TB, dir string, o Options) (*Store, *gate) {
	t.Helper()
	var g *gate
	o.SSD = &ssd.Options{Dir: dir, Cap: 64 << 20}
	o.wrap = func(d disk) disk { g = &gate{disk: d}; return g }
	return open(t, o), g
}

// eventually waits until so returns true, for something that another goroutine does.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); {
		if time.Now().After(end) {
			t.Fatal("never:", what)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

var crowded atomic.Int64

// crowd puts a new block of 4 MiB, which evicts all others from an arena of 4 MiB.
func crowd(t testing.TB, s *Store) {
	t.Helper()
	put(t, s, item(1_000_000+int(crowded.Add(1)), false), fill(4<<20, 'x'))
}

func get(t testing.TB, s *Store, it Item, want []byte) {
	t.Helper()
	b, err := s.Get(ctx, it.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if info := b.Info(); !bytes.Equal(b.Bytes(), want) || info.CRC != block.Sum(want) ||
		!bytes.Equal(info.Item.Key, it.Key) ||
		!bytes.Equal(info.Item.Attr, it.Attr) || info.Item.Parent != it.Parent {
		t.Fatalf("%d bytes of %d, %+v", len(b.Bytes()), len(want), info)
	}
}

func durable(t testing.TB, s *Store, it Item, payload []byte) {
	t.Helper()
	if info, err := s.Put(ctx, it, payload, true); err != nil || info.Tiers != RAM|SSD {
		t.Fatal(info, err)
	}
}

func TestDurable(t *testing.T) {
	dir := t.TempDir()
	s, _ := tiered(t, dir, Options{})
	sizes := []int{0, 1, 100, 4096, 5000, 300_001, 1 << 20}
	keyedItem := func(n int) Item {
		it := keyed(fmt.Sprint("key ", n))
		it.Attr, it.Parent = fill(n%2000, 'm'), block.Digest{9}
		return it
	}
	for _, n := range sizes {
		durable(t, s, keyedItem(n), fill(n, byte(n)))
		durable(t, s, item(n+1, false), fill(n, byte(n)))
	}
	check := func() {
		for _, n := range sizes {
			get(t, s, keyedItem(n), fill(n, byte(n)))
			get(t, s, item(n+1, false), fill(n, byte(n)))
		}
	}
	check()
	crowd(t, s)
	check()
	if st := s.Stats(); st.Promotions < 10 || st.Durable != 14 || st.RAM.Size-st.RAM.Free > 4<<20 {
		t.Errorf("%+v", st.Counts)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = tiered(t, dir, Options{})
	var out [1]Info
	if err := s.StatAll(ctx, []block.Addr{item(1, false).Addr}, out[:]); err != nil || out[0].Tiers != SSD {
		t.Error(out, err)
	}
	check()
}

func TestSecondUse(t *testing.T) {
	dir := t.TempDir()
	s, g := tiered(t, dir, Options{})
	onSSD := func(it Item) func() bool {
		return func() bool { _, there := g.disk.Find(it.Addr); return there }
	}
	once, got, twice := item(1, false), item(2, false), item(3, false)
	put(t, s, once, fill(100, '1'))
	put(t, s, got, fill(100, '2'))
	put(t, s, twice, fill(100, '3'))
	get(t, s, got, fill(100, '2'))
	put(t, s, twice, fill(100, '4'))
	eventually(t, "a block that was got is written", onSSD(got))
	eventually(t, "a block that was put twice is written", onSSD(twice))
	crowd(t, s)
	put(t, s, once, fill(100, '5'))
	eventually(t, "a block that was evicted and put again is written", onSSD(once))
	eventually(t, "all three are counted", func() bool { return s.Stats().WrittenBehind >= 3 })
	one := item(4, false)
	put(t, s, one, fill(100, '6'))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = tiered(t, dir, Options{})
	get(t, s, once, fill(100, '5'))
	get(t, s, got, fill(100, '2'))
	get(t, s, twice, fill(100, '4'))
	if has(s, one.Addr) {
		t.Error("a block that was used once is on SSD")
	}
}

func TestReplacedOnSSD(t *testing.T) {
	dir := t.TempDir()
	s, g := tiered(t, dir, Options{})
	it := item(1, false)
	durable(t, s, it, fill(100, '1'))
	g.set(nil, nil, func() error { return ssd.ErrIO })
	if _, err := s.Put(ctx, it, fill(100, '2'), false); !errors.Is(err, ssd.ErrIO) {
		t.Error(err)
	}
	get(t, s, it, fill(100, '1'))
	g.set(nil, nil, nil)
	put(t, s, it, fill(200, '3'))
	if _, there := g.disk.Find(it.Addr); there && s.Stats().WrittenBehind == 0 {
		t.Error("the old one is still on SSD")
	}
	durable(t, s, it, fill(300, '4'))
	crowd(t, s)
	get(t, s, it, fill(300, '4'))
	if there, err := s.Delete(ctx, it.Addr); !there || err != nil {
		t.Error(there, err)
	}
	if has(s, it.Addr) {
		t.Error("deleted, but there")
	}
	d, err := s.Create(ctx, it, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(ctx, CommitOptions{IfAbsent: true, Durable: true}); err != nil {
		t.Error(err)
	}
	crowd(t, s)
	if d, err = s.Create(ctx, it, 20); err != nil {
		t.Fatal(err)
	}
	if info, err := d.Commit(ctx, CommitOptions{IfAbsent: true}); !errors.Is(err, ErrExists) || info.Length != 10 ||
		info.Tiers != SSD {
		t.Error(info, err)
	}
}

// stopped returns a hook that reports on reached and then waits for goOn.
func stopped() (hook func() error, reached, goOn chan struct{}) {
	reached, goOn = make(chan struct{}, 16), make(chan struct{})
	return func() error { reached <- struct{}{}; <-goOn; return nil }, reached, goOn
}

// TestPromotionUnderWay deletes, replaces and purges a block while it is being read from SSD.
func TestPromotionUnderWay(t *testing.T) {
	for what, act := range map[string]func(s *Store, it Item) (want []byte){
		"delete": func(s *Store, it Item) []byte {
			if there, err := s.Delete(ctx, it.Addr); !there || err != nil {
				t.Error(there, err)
			}
			return nil
		},
		"put": func(s *Store, it Item) []byte {
			put(t, s, it, fill(50, '2'))
			return fill(50, '2')
		},
		"purge": func(s *Store, it Item) []byte {
			if n, err := s.Purge(ctx, func(ns string, _ []byte) bool { return ns == llama }); n == 0 || err != nil {
				t.Error(n, err)
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, g := tiered(t, t.TempDir(), Options{})
			it := item(1, false)
			durable(t, s, it, fill(100, '1'))
			crowd(t, s)
			put(t, s, keyed("other"), fill(10, 'o'))
			hook, reached, goOn := stopped()
			g.set(hook, nil, nil)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { get(t, s, it, fill(100, '1')) })
			}
			<-reached
			// Other blocks do not wait, and a reader that waits can give up.
			get(t, s, keyed("other"), fill(10, 'o'))
			put(t, s, keyed("third"), fill(10, 'p'))
			gone, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := s.Get(gone, it.Addr); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			// The first reader gets the old payload. The two others may come after the change.
			done := make(chan []byte, 1)
			g.set(nil, nil, nil)
			close(goOn)
			wg.Wait()
			go func() { done <- act(s, it) }()
			if want := <-done; want == nil && has(s, it.Addr) {
				t.Error("it is still there")
			} else if want != nil {
				get(t, s, it, want)
			}
			if n := s.Stats().Promotions; n != 1 {
				t.Error(n, "promotions for one block")
			}
		})
	}
}

// TestOvertaken deletes and replaces a block while it is being read from SSD or written there.
func TestOvertaken(t *testing.T) {
	for _, c := range []struct{ writing, replace bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			s, g := tiered(t, t.TempDir(), Options{})
			it := item(1, false)
			hook, reached, goOn := stopped()
			var wg sync.WaitGroup
			if c.writing {
				g.set(nil, hook, nil)
				put(t, s, it, fill(100, '1'))
				get(t, s, it, fill(100, '1'))
			} else {
				durable(t, s, it, fill(100, '1'))
				crowd(t, s)
				g.set(hook, nil, nil)
				wg.Go(func() {
					if b, err := s.Get(ctx, it.Addr); err == nil {
						b.Release()
					}
				})
			}
			<-reached
			g.set(nil, nil, nil)
			wg.Go(func() {
				if c.replace {
					put(t, s, it, fill(100, '2'))
				} else if _, err := s.Delete(ctx, it.Addr); err != nil {
					t.Error(err)
				}
			})
			eventually(t, "the second waits for its turn", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.ops[it.Addr] != nil && s.ops[it.Addr].users >= 2
			})
			close(goOn)
			wg.Wait()
			for range 2 {
				if c.replace {
					get(t, s, it, fill(100, '2'))
				} else if has(s, it.Addr) {
					t.Error("a deleted block is back")
				}
				eventually(t, "the queue is empty", func() bool { return s.Stats().BehindBytes == 0 })
				crowd(t, s)
				if c.replace && !has(s, it.Addr) {
					break // the block was evicted before it was written
				}
			}
		})
	}
}

// TestPinGivesUp pins a block that is on SSD. Pin waits for SSD no longer than its context.
func TestPinGivesUp(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{Pins: 1})
	it := item(1, false)
	durable(t, s, it, fill(4096, 'a'))
	crowd(t, s)
	reading, goOn := make(chan struct{}), make(chan struct{})
	g.set(func() error { close(reading); <-goOn; return nil }, nil, nil)
	var other sync.WaitGroup
	other.Go(func() { get(t, s, it, fill(4096, 'a')) })
	<-reading
	gaveUp, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Pin(gaveUp, it.Addr, "a", 1<<60); !errors.Is(err, context.Canceled) {
		t.Error("a pin that nobody waits for:", err)
	}
	g.set(nil, nil, nil)
	close(goOn)
	other.Wait()
	if err := s.Pin(ctx, it.Addr, "a", 1<<60); err != nil {
		t.Error(err)
	}
}

// TestVolatileIsNotDurable checks that a tier whose index is in memory only takes blocks that RAM
// has no room for, and refuses durable ones.
func TestVolatileIsNotDurable(t *testing.T) {
	s := open(t, Options{SSD: &ssd.Options{Dir: t.TempDir(), Cap: 64 << 20, Volatile: true}})
	if _, err := s.Put(ctx, item(1, false), nil, true); !errors.Is(err, ErrNotDurable) {
		t.Error(err)
	}
	if _, err := s.Put(ctx, item(2, false), nil, false); err != nil {
		t.Error(err)
	}
}
