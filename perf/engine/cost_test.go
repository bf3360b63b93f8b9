//go:build !race

package engine

import (
	"sync"
	"testing"
	"time"
)

// TestStreamsCostLittle: 2,000 streams at 20 tokens/s each take a fraction of a
// core, 15 to 20 µs per token, its part of the request included. The bound is on CPU time,
// which a busy machine changes little.
func TestStreamsCostLittle(t *testing.T) {
	const streams, tokens = 2000, 20
	addr, stop := child(t, Config{DecodeStep: 50 * time.Millisecond, MaxSeqs: streams, PrefillTokensPerSecond: 1000000})
	var clients sync.WaitGroup
	for range streams {
		clients.Go(func() { drain(t, addr, tokens) })
	}
	clients.Wait()
	perToken := stop() / (streams * tokens)
	const bound = 30 * time.Microsecond
	if perToken > bound {
		t.Errorf("%v of CPU time per token, at most %v are expected", perToken, bound)
	}
	t.Logf("%v of CPU time per token", perToken)
}
