package load

import (
	"cmp"
	"sync"
	"time"
)

// Closed keeps Clients requests in flight, each client on its own connection.
type Closed struct {
	Target  Target
	Bodies  *Chat
	Clients int
	First   uint64 // number of the first request, for Bodies
	// Requests, if not 0, ends the run after this many requests. With Requests, the window's
	// Measure is the time limit.
	Requests uint64
	Window   Window
	Timeout  time.Duration // time limit of one request; default 30 s
}

// Run runs until the window has passed and the last answers are there. Run returns the number of
// the next request.
func (c Closed) Run() (*Result, uint64) {
	r := &run{target: c.Target, bodies: c.Bodies, timeout: cmp.Or(c.Timeout, requestTimeout)}
	r.next.Store(c.First)
	if c.Bodies.cfg.Stream {
		r.sink = &sink{Want: c.Bodies.cfg.Tokens}
	}
	result := r.work(c.Window, func(stop <-chan struct{}) {
		var clients sync.WaitGroup
		for range c.Clients {
			clients.Go(func() { c.client(r, stop) })
		}
		clients.Wait()
	})
	return result, r.next.Load()
}

func (c Closed) client(r *run, stop <-chan struct{}) {
	conn := newConn(&r.target, readBuffer)
	defer conn.close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		n := r.next.Add(1) - 1
		if c.Requests > 0 && n-c.First >= c.Requests {
			return
		}
		if !r.one(conn, r.sink, n, time.Now()) {
			pause(10*time.Millisecond, stop) // avoids a busy loop against a target that refuses
		}
	}
}

// requestTimeout is the default time limit of a request.
const requestTimeout = 30 * time.Second
