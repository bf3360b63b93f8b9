package load

import (
	"cmp"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Open sends requests when they are due, whether earlier ones have ended or not. Times count from
// the due time, so a target cannot hide that it stalls.
type Open struct {
	Target Target
	Bodies *Chat
	// Arrivals returns the time of each request since the start. False ends the run.
	Arrivals func() (time.Duration, bool)
	// MaxClients bounds the connections. If none is free, a request waits, and its time counts.
	// Default 1024.
	MaxClients int
	First      uint64 // number of the first request, for Bodies
	Window     Window
	Timeout    time.Duration // time limit of one request; default 30 s
}

// Poisson returns arrivals at perSecond with independent gaps.
func Poisson(perSecond float64, seed uint64) func() (time.Duration, bool) {
	random := rand.New(rand.NewPCG(seed, 2))
	at := 0.0
	return func() (time.Duration, bool) {
		at += random.ExpFloat64() / perSecond
		return time.Duration(at * float64(time.Second)), at < math.MaxInt64/1e9
	}
}

type job struct {
	n   uint64
	due time.Time
}

// Run runs until the window has passed or the arrivals have ended, and all answers are there.
func (o Open) Run() *Result {
	o.MaxClients = cmp.Or(o.MaxClients, 1024)
	r := &run{target: o.Target, bodies: o.Bodies, timeout: cmp.Or(o.Timeout, requestTimeout)}
	return r.work(o.Window, func(stop <-chan struct{}) { o.dispatch(r, stop) })
}

// dispatch distributes the requests over connections and waits for their answers.
func (o Open) dispatch(r *run, stop <-chan struct{}) {
	jobs := make(chan job)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(jobs)
	count, begun := 0, time.Now()
	for n := o.First; ; n++ {
		at, ok := o.Arrivals()
		if !ok {
			return
		}
		j := job{n, begun.Add(at)}
		pause(time.Until(j.due), stop)
		select {
		case <-stop:
			return
		case jobs <- j:
			continue
		default:
		}
		if count < o.MaxClients {
			count++
			workers.Go(func() { o.work(r, jobs, j) })
			continue
		}
		select {
		case jobs <- j:
		case <-stop:
			return
		}
	}
}

// work runs one connection, beginning with request j.
func (o Open) work(r *run, jobs <-chan job, j job) {
	c := newConn(&r.target, readBuffer)
	defer c.close()
	var s *sink
	if o.Bodies.cfg.Stream {
		s = &sink{Want: o.Bodies.cfg.Tokens}
		s.OnFirst = func() {
			if r.counting.Load() {
				r.first.Add(time.Since(j.due))
			}
		}
	}
	for ok := true; ok; j, ok = <-jobs {
		if r.counting.Load() {
			r.late.Add(time.Since(j.due))
		}
		r.one(c, s, j.n, j.due)
	}
}
