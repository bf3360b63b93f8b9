package scan

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// sumByWord computes NH by its definition (RFC 4418), with neighbouring words paired.
func sumByWord(key, text []byte) (sum uint64) {
	word := func(at int) uint64 {
		return uint64(binary.LittleEndian.Uint32(text[at:]) + binary.LittleEndian.Uint32(key[at:]))
	}
	for at := 0; at < stride; at += 8 {
		sum += word(at) * word(at+4)
	}
	return sum
}

func TestSumStride(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	key, text := newStrideKey(), make([]byte, stride)
	for range 20 {
		for i := range text {
			text[i] = byte(r.Uint32())
		}
		first, second, ok := sumStride(key, text)
		if !ok {
			t.Skip("not on this processor")
		}
		if want := sumByWord(key[:], text); first != want {
			t.Errorf("first sum %x, want %x", first, want)
		}
		if want := sumByWord(key[16:], text); second != want {
			t.Errorf("second sum %x, want %x", second, want)
		}
	}
}

func BenchmarkHashStrides(b *testing.B) {
	m, body := NewMemo(1<<20), chatBody(220<<10)
	var hashes []uint64
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		hashes = m.hash(hashes[:0], uint64(Chat), body)
	}
}
