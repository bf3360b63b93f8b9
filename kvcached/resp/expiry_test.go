package resp

import (
	"math"
	"testing"
)

// TestSeconds: milliseconds are rounded to seconds, up to the last moment that PEXPIREAT accepts.
func TestSeconds(t *testing.T) {
	for ms, want := range map[int64]int64{0: 0, 499: 0, 500: 1, 1499: 1, 1500: 2, math.MaxInt64: 9223372036854776} {
		if got := seconds(ms); got != want {
			t.Errorf("%d ms are %d s, want %d", ms, got, want)
		}
	}
}
