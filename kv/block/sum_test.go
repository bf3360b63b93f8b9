package block

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestExtend compares with the library's checksum at every length near the pieces, from every
// offset.
func TestExtend(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d, folding: %v, mixing: %v", seed, hasFold, hasMix)
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 70_000)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	check := func(sum uint32, p []byte) {
		if got, want := Extend(sum, p), crc32.Update(sum, Castagnoli, p); got != want {
			t.Fatalf("%d bytes from %#x: %#x, not %#x", len(p), sum, got, want)
		}
	}
	for n := range 3000 {
		check(0, b[:n])
		check(r.Uint32(), b[n%67:][:n])
	}
	for n := mixMin - 1; n < len(b); n = n*3/2 + 1 {
		check(r.Uint32(), b[:n])
	}
	for range 500 {
		from := r.IntN(len(b))
		check(r.Uint32(), b[from:from+r.IntN(len(b)-from+1)])
	}
	if Sum([]byte("123456789")) != 0xe3069283 {
		t.Error("the check value of CRC32C is another")
	}
	if n := testing.AllocsPerRun(100, func() { Sum(b) }); n >= 1 { // under -race a pool drops some objects
		t.Errorf("%v allocations", n)
	}
}

func FuzzExtend(f *testing.F) {
	f.Add(uint32(0), make([]byte, 2000), 100)
	f.Add(uint32(1), make([]byte, 20_000), 9000)
	f.Fuzz(func(t *testing.T, sum uint32, p []byte, cut int) {
		cut = int(uint(cut) % uint(len(p)+1))
		if got, want := Extend(Extend(sum, p[:cut]), p[cut:]), crc32.Update(sum, Castagnoli, p); got != want {
			t.Fatalf("%#x, not %#x", got, want)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{1 << 10, 64 << 10, 1 << 20} {
		p := make([]byte, n)
		b.Run(fmt.Sprint("ours/", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum(p)
			}
		})
		b.Run(fmt.Sprint("library/", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				crc32.Checksum(p, Castagnoli)
			}
		})
	}
}
