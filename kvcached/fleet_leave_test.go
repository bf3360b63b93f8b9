package kvcached

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/kvcached/transport"
)

// TestPullsOutlastALeaving stops the holder or the puller while blocks are pulled. Pulls under way
// still succeed.
func TestPullsOutlastALeaving(t *testing.T) {
	for _, lane := range []transport.Lane{transport.QUIC, transport.TLS} {
		for who := range 2 {
			t.Run(fmt.Sprint(lane, who), func(t *testing.T) {
				t.Parallel()
				const n, size = 3, 2 << 20
				s := newSite(t)
				slow := func(c *Config) { c.QUIC.Total, c.Fleet.Lane = 4<<20, string(lane) }
				a, stopA := s.host(t, "a", slow)
				b, stopB := s.host(t, "b", slow)
				meet(t, 2, a, b)
				value := bytes.Repeat([]byte{'x'}, size)
				for i := range n {
					set(t, a, fmt.Sprint("key", i), value)
				}
				for i := range n {
					awaitThat(t, "the other host knows of it", func() bool {
						return redis(t, b.At("resp"), fmt.Sprint("EXISTS key", i))[0] == ":1"
					})
				}
				var pulls sync.WaitGroup
				for i := range n {
					pulls.Go(func() {
						if got := redis(t, b.At("resp"), fmt.Sprint("GET key", i))[0]; got != string(value) {
							t.Errorf("key %d: %d bytes: %.20s", i, len(got), got)
						}
					})
				}
				awaitThat(t, "all are on their way", func() bool { return a.metrics.peers.Stats().InFlight == n*size })
				stop := []func() error{stopA, stopB}[who]
				if err := stop(); err != nil {
					t.Error(err)
				}
				pulls.Wait()
			})
		}
	}
}
