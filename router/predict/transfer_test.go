package predict

import (
	"math"
	"testing"
)

// TestTransfer: the time of a token is learned, and tokens that are late for another reason hardly
// count.
func TestTransfer(t *testing.T) {
	expect := func(tr *Transfer, least, most float64) {
		t.Helper()
		if got := tr.Expected(1000) / 1000; got < least || got > most {
			t.Errorf("%.3g s a token, want %.3g to %.3g", got, least, most)
		}
	}
	var late Transfer
	expect(&late, transferStart, transferStart)
	for i := range 100 { // each fourth one waits for seconds
		seconds := 0.005
		if i%4 == 0 {
			seconds = 20
		}
		late.Learn(1000, seconds)
	}
	expect(&late, 0.9*transferStart, 1.6*transferStart)
	var fast, slow, silly Transfer
	for range 400 {
		fast.Learn(1000, 0.0001)
		slow.Learn(1000, 0.1)
		silly.Learn(10, 1e6)
		silly.Learn(0, 1)
		silly.Learn(math.NaN(), math.Inf(1))
	}
	expect(&fast, 0, 2e-7)
	expect(&slow, 0.9e-4, 1.1e-4)
	expect(&silly, 0, transferMost)
}
