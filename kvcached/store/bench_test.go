package store

import (
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

func prompt(n int) []block.Addr {
	addrs := make([]block.Addr, n)
	for i := range addrs {
		addrs[i] = item(i+1, true).Addr
	}
	return addrs
}

func TestAllocations(t *testing.T) {
	t.Run("RAM", func(t *testing.T) { allocations(t, open(t, Options{RAM: 64 << 20})) })
	t.Run("SSD", func(t *testing.T) {
		s, _ := tiered(t, t.TempDir(), Options{RAM: 64 << 20})
		allocations(t, s)
	})
}

func allocations(t *testing.T, s *Store) {
	addrs := prompt(1000)
	for i := range addrs {
		put(t, s, item(i+1, true), fill(100, 'a'))
	}
	get(t, s, item(501, true), fill(100, 'a'))
	eventually(t, "what was used is on SSD", func() bool { return s.Stats().BehindBytes == 0 })
	out := make([]Info, len(addrs))
	for what, f := range map[string]func(){
		"Get and Release": func() {
			b, err := s.Get(ctx, addrs[500])
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		},
		"a miss": func() { _, _ = s.Get(ctx, block.Addr{}) },
		"Stat":   func() { _, _ = s.Stat(ctx, addrs[5]) },
		"StatAll": func() {
			if err := s.StatAll(ctx, addrs, out); err != nil {
				t.Fatal(err)
			}
		},
		"Touch": func() { s.Touch(addrs) },
	} {
		n := testing.AllocsPerRun(100, f)
		for range 4 { // the tier's own goroutines allocate now and then
			n = min(n, testing.AllocsPerRun(100, f))
		}
		if n != 0 {
			t.Errorf("%s allocates %.0f times", what, n)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s := open(b, Options{RAM: 256 << 20})
	addrs := prompt(10_000)
	for i := range addrs {
		put(b, s, item(i+1, true), fill(100, 'a'))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		got, err := s.Get(ctx, addrs[i*7919%len(addrs)])
		if err != nil {
			b.Fatal(err)
		}
		got.Release()
	}
}

func BenchmarkGetParallel(b *testing.B) {
	s := open(b, Options{RAM: 16 << 20})
	put(b, s, item(1, true), fill(100, 'a'))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			got, err := s.Get(ctx, item(1, true).Addr)
			if err != nil {
				b.Fatal(err)
			}
			got.Release()
		}
	})
}

func BenchmarkStatAll1000(b *testing.B) {
	s := open(b, Options{RAM: 64 << 20})
	addrs := prompt(1000)
	for i := range addrs {
		put(b, s, item(i+1, true), fill(100, 'a'))
	}
	out := make([]Info, len(addrs))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.StatAll(ctx, addrs, out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPut puts blocks into a full arena whose pages are mapped. The benchmark compares Put
// with a copy between two buffers of the same sizes.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 8 << 20} {
		payload := fill(size, 'a')
		b.Run(fmt.Sprintf("put/%dKiB", size>>10), func(b *testing.B) {
			s := open(b, Options{RAM: 256 << 20})
			for i := range (256 << 20) / size {
				put(b, s, item(i, false), payload)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				put(b, s, item(1e6+n, false), payload)
			}
		})
		b.Run(fmt.Sprintf("memcpy/%dKiB", size>>10), func(b *testing.B) {
			to := make([]byte, 256<<20)
			for i := range to {
				to[i] = 1
			}
			b.SetBytes(int64(size))
			n := 0
			for b.Loop() {
				n++
				copy(to[n*size%len(to):][:size], payload)
			}
		})
	}
}
