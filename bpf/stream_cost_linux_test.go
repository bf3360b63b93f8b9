package bpf

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Streams like an engine's. The cost of programs is measured with these streams and, in
// BenchmarkSwitch and BenchmarkPackets, with tight loops.
const (
	streams     = 32
	streamEvery = 8 * time.Millisecond // between two tokens of a stream
	headBytes   = 180
	tokenBytes  = 150
)

// pace counts the data that paced streams have sent.
type pace struct {
	port   uint16
	tokens atomic.Uint64
	stop   func()
}

// paced makes a watched port send tokens at a fixed pace over several connections, each on a
// goroutine of its own, until it is stopped or the test ends.
func paced(t *testing.T, s *Set) *pace {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	p := &pace{port: uint16(l.Addr().(*net.TCPAddr).Port)}
	if err := s.WatchPort(p.port); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	done := make(chan struct{})
	p.stop = sync.OnceFunc(func() { close(done); _ = l.Close(); all.Wait() })
	t.Cleanup(p.stop)
	for range streams {
		c := must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))
		out := must[net.Conn](t)(l.Accept())
		must[int](t)(fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n%200d", 1))
		all.Go(func() {
			defer out.Close()
			must[int](t)(out.Read(make([]byte, 1024)))
			must[int](t)(out.Write(make([]byte, headBytes)))
			tick := time.NewTicker(streamEvery)
			defer tick.Stop()
			for b := make([]byte, tokenBytes); ; {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				if _, err := out.Write(b); err != nil {
					return
				}
				p.tokens.Add(1)
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
	return p
}

// counted stops the streams, and compares the programs' counts with the sent data.
func (p *pace) counted(h *host, s *Set) {
	p.stop()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("%+v", h.port(s, p.port))
		}
	}()
	within(h.t, "all streams have ended", func() bool { return h.port(s, p.port).Closed == streams })
	sent, c := p.tokens.Load(), h.port(s, p.port)
	k := must[Tokens](h.t)(s.Tokens(p.port))
	if bytes := streams*headBytes + sent*tokenBytes; sent < streams || c.BytesSent != bytes {
		h.t.Errorf("%d tokens, %d bytes sent, %d counted", sent, bytes, c.BytesSent)
	}
	// The kernel may put several tokens into a segment. Each segment is one gap, except two
	// segments of each stream: the head, and the first token or the segment that went out with the
	// head.
	segments, gaps := c.SegmentsSent-c.Retransmits, k.ITL.Count+k.Joined+k.Coalesced
	if k.Streams != streams || gaps+2*streams < segments || gaps+streams > segments {
		h.t.Errorf("%d segments of %d streams: %d streams and %d gaps counted, %d of them inside pieces, %d of "+
			"several tokens", segments, streams, k.Streams, gaps, k.Joined, k.Coalesced)
	}
	h.t.Logf("%d tokens sent in %d segments; %d gaps counted, %d of them inside pieces, %d of several tokens", sent,
		segments, gaps, k.Joined, k.Coalesced)
}

// TestCostOfStreams measures the cost of a run of each program while tokens go out at their own
// pace, so that other code has used the caches between runs. TestCostOfStreams also measures an
// empty program at switches. No program may cost more than costTimes as much. All figures include
// taking the times.
func TestCostOfStreams(t *testing.T) {
	h := newHost(t)
	s := h.load()
	stats(t)
	p := paced(t, s)
	programs := []string{"cgn_switch", "cgn_skb_in", "cgn_skb_out"}
	costs := h.over(2*time.Second, programs...)
	if err := s.maps["cgn_to_switch"].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	t.Log("nothing to do at a switch:")
	nothing := h.over(2*time.Second, programs[0])[0]
	for i, each := range costs {
		if each <= 0 || each > costTimes*nothing && !testing.Short() {
			t.Errorf("%s: %v each, and %v where there is nothing to do", programs[i], each, nothing)
		}
	}
	p.counted(h, s)
}

// over logs the runs, the cost of a run, and the share of a core of programs during d. over returns
// the mean cost of a run of each program.
func (h *host) over(d time.Duration, programs ...string) (all []time.Duration) {
	cores := 0.0
	before, start := h.costs(), time.Now()
	<-time.After(d)
	after, took := h.costs(), time.Since(start)
	for _, name := range programs {
		runs, spent := after[name].Runs-before[name].Runs, after[name].RunTime-before[name].RunTime
		each := spent / time.Duration(max(runs, 1))
		h.t.Logf("%s: %.0f a second, %d ns each", name, float64(runs)/took.Seconds(), each.Nanoseconds())
		all = append(all, each)
		cores += spent.Seconds() / took.Seconds()
	}
	h.t.Logf("together %.2f %% of a core", 100*cores)
	return all
}
