package bpf

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Streams as engines send them, at which the cost of programs is told beside that of the tight loops of BenchmarkSwitch and BenchmarkPackets.
const (
	streams     = 32
	streamEvery = 8 * time.Millisecond // between two tokens of a stream
)

// paced has a watched port send paced tokens over a number of connections, each on a goroutine of its own, until the test ends.
func paced(t *testing.T, s *Set) {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	if err := s.WatchPort(uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() { close(done); _ = l.Close(); all.Wait() })
	for range streams {
		c := must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))
		out := must[net.Conn](t)(l.Accept())
		must[int](t)(fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n%200d", 1))
		all.Go(func() {
			defer out.Close()
			must[int](t)(out.Read(make([]byte, 1024)))
			must[int](t)(out.Write(make([]byte, 180)))
			tick := time.NewTicker(streamEvery)
			defer tick.Stop()
			for b := make([]byte, 150); ; {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				if _, err := out.Write(b); err != nil {
					return
				}
			}
		})
		all.Go(func() {
			defer c.Close()
			for b := make([]byte, 1024); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		})
	}
}

// TestCostOfStreams says what a run of each program costs while tokens go out at their own pace, so that each finds caches that others have used since the last;
// a run of a program of switches that does nothing says how much of that is the machine's. Taking the times is in all of them.
func TestCostOfStreams(t *testing.T) {
	h := newHost(t)
	s := h.load()
	stats(t)
	paced(t, s)
	programs := []string{"cgn_switch", "cgn_skb_in", "cgn_skb_out"}
	cores := h.over(2*time.Second, programs...)
	if cores <= 0 || cores > 0.03*float64(times(1, 50)) {
		t.Errorf("%.2f %% of a core, the bound is 3", 100*cores)
	}
	if err := s.maps["cgn_to_switch"].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	t.Log("nothing to do at a switch:")
	h.over(2*time.Second, programs[0])
}

// over logs what runs of programs cost in a time, and returns their share of a core.
func (h *host) over(d time.Duration, programs ...string) (cores float64) {
	before, start := h.costs(), time.Now()
	<-time.After(d)
	after, took := h.costs(), time.Since(start)
	for _, name := range programs {
		runs, spent := after[name].Runs-before[name].Runs, after[name].RunTime-before[name].RunTime
		h.t.Logf("%s: %.0f a second, %.0f ns each", name, float64(runs)/took.Seconds(), float64(spent)/float64(max(runs, 1)))
		cores += spent.Seconds() / took.Seconds()
	}
	h.t.Logf("together %.2f %% of a core", 100*cores)
	return cores
}
