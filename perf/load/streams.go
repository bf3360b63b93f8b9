package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Streams holds N streams at once. Each is one request of Bodies, whose Tokens must last for
// the window and the time that opening all of them takes.
type Streams struct {
	Target Target
	Bodies *Chat
	N      int
	Ramp   time.Duration // over which the streams are opened, evenly
	First  uint64
	Window Window // Warmup counts from when the last stream was opened
	// Abandon cuts the streams at the window's end instead of reading them to theirs. The window's
	// Stop does so too.
	Abandon bool
	Timeout time.Duration // of one stream; default 30 s
	Buffer  int           // bytes read at once; default 16 KiB
	OnToken func()        // if set, after each token
}

// Run blocks until all streams have ended.
func (s Streams) Run() *Result {
	if s.Buffer == 0 {
		s.Buffer = readBuffer
	}
	r := &run{target: s.Target, bodies: s.Bodies, timeout: orDefault(s.Timeout)}
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
	window := s.Window
	end := window.End
	window.End = func() {
		if end != nil {
			end()
		}
		if s.Abandon {
			abandon()
		}
	}
	result := r.measure(window, func() {}, done, r.sink.Tokens.Load)
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
