package block

import (
	"bytes"
	"testing"
)

func TestCombine(t *testing.T) {
	long := bytes.Repeat([]byte{7, 1, 3}, 1<<20)
	for _, cut := range []int{0, 1, 4095, 4096, 1 << 20, len(long)} {
		if got := Combine(Sum(long[:cut]), Sum(long[cut:]), uint64(len(long)-cut)); got != Sum(long) {
			t.Errorf("cut at %d: %08x", cut, got)
		}
	}
}
