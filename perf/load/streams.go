package load

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// Streams holds N streams at once. Each stream is one request of Bodies. The Tokens of Bodies must
// last for the window and for the time to open all streams.
type Streams struct {
	Target Target
	Bodies *Chat
	N      int
	Ramp   time.Duration // time over which the streams are opened, evenly
	First  uint64
	Window Window // Warmup begins when the last stream has been opened
	// Abandon cuts the streams at the end of the window instead of reading them to their ends. The
	// window's Stop also cuts them.
	Abandon bool
	Timeout time.Duration // time limit of one stream; default 30 s
	Buffer  int           // bytes of one read; default 16 KiB
	OnToken func()        // called after each token, if set
}

// Run runs until all streams have ended.
func (s Streams) Run() *Result {
	s.Buffer = cmp.Or(s.Buffer, readBuffer)
	r := &run{target: s.Target, bodies: s.Bodies, timeout: cmp.Or(s.Timeout, requestTimeout)}
	r.sink = &sink{Want: s.Bodies.cfg.Tokens, Delay: &Histogram{}, Counting: &r.counting, OnToken: s.OnToken}
	var streams sync.WaitGroup
	var abandoned atomic.Bool
	done := make(chan struct{})
	conns := make([]*conn, 0, s.N)
	begun := time.Now()
	for i := range s.N {
		s.Window.pause(time.Until(begun.Add(s.Ramp*time.Duration(i)/time.Duration(s.N))), nil)
		if s.Window.stopped() {
			break
		}
		c := newConn(&r.target, s.Buffer)
		conns = append(conns, c)
		streams.Go(func() {
			err := c.exchange(r.bodies, s.First+uint64(i), time.Now().Add(r.timeout), r.sink)
			switch {
			case err == nil:
				r.answered.Add(1)
			case !abandoned.Load():
				r.failures.add(err)
			}
		})
	}
	go func() {
		streams.Wait()
		close(done)
	}()
	abandon := func() {
		abandoned.Store(true)
		for _, c := range conns {
			c.cut()
		}
	}
	result := r.measure(s.Window, func() {}, done, r.sink.Tokens.Load)
	if s.Abandon {
		abandon()
	}
	select {
	case <-done:
	case <-s.Window.Stop:
		abandon()
		<-done
	}
	for _, c := range conns {
		c.close()
	}
	result.Tokens, result.Requests = result.Requests, r.answered.Load()
	r.finish(result)
	return result
}
