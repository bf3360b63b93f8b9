package prefix

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/cpu"
	"lukechampine.com/blake3"
)

// TestHashesAsBLAKE3 compares the chain with the library's keyed mode, for various cuts into calls.
func TestHashesAsBLAKE3(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		tokens := make([]uint32, BlockTokens*(1+random.IntN(40)))
		text := make([]byte, 0, 4*len(tokens))
		for i := range tokens {
			tokens[i] = random.Uint32()
			text = binary.LittleEndian.AppendUint32(text, tokens[i])
		}
		parent := Seed("m", "", string(text[:8]))
		var byText, byTokens Chain
		byText.Reset(parent, text, nil)
		byTokens.Reset(parent, nil, tokens)
		for i := 0; i < byText.Blocks(); i += 1 + random.IntN(5) {
			byText.HashTo(i + 1)
		}
		for i := range byText.Blocks() {
			h := blake3.New(32, parent[:])
			h.Write(text[i*BlockBytes:][:BlockBytes])
			h.Sum(parent[:0])
			if byText.Key(i) != binary.LittleEndian.Uint64(parent[:8]) ||
				byTokens.Key(i) != binary.LittleEndian.Uint64(parent[:8]) {
				t.Fatalf("block %d: text %x, tokens %x, want %x", i, byText.Key(i), byTokens.Key(i), parent)
			}
		}
		if last, ok := byText.Digest(byText.Blocks() - 1); !ok || last != parent {
			t.Fatalf("the last digest is %x, want %x", last, parent)
		}
	}
}

// TestOlderProcessors checks that the digests are the same without the newer instructions.
func TestOlderProcessors(t *testing.T) {
	defer func(was bool) { cpu.X86.HasAVX2 = was }(cpu.X86.HasAVX2)
	defer func(was bool) { cpu.X86.HasAVX512VL = was }(cpu.X86.HasAVX512VL)
	for _, lacks := range []*bool{&cpu.X86.HasAVX512VL, &cpu.X86.HasAVX2} {
		*lacks = false
		TestHashesAsBLAKE3(t)
		TestDigestsAreFrozen(t)
	}
}

func BenchmarkHash(b *testing.B) {
	text := prompt("hash", 1024)
	digests := make([]words, 1024)
	for _, hash := range []struct {
		name string
		of   func([]words, *words, []byte)
	}{{"this machine", hashText}, {"AVX2", hashText}, {"generic", hashTextGeneric}} {
		b.Run(hash.name, func(b *testing.B) {
			defer func(was bool) { cpu.X86.HasAVX512VL = was }(cpu.X86.HasAVX512VL)
			cpu.X86.HasAVX512VL = cpu.X86.HasAVX512VL && hash.name != "AVX2"
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				hash.of(digests, &words{}, text)
			}
		})
	}
}
