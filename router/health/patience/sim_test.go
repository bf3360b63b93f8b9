package patience

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// sim is a fleet in virtual time. A node computes prompts one after the other and decodes all begun
// requests at the same pace.
type sim struct {
	t      *testing.T
	m      *Model
	now    time.Time
	nodes  []*simNode
	reqs   []*simRequest
	stalls []Stall
	rng    *rand.Rand
	// checked says that a node gets a completion check after each report. A hung node answers none.
	checked bool
}

type simNode struct {
	n      *Node
	slow   float64
	hung   bool
	aside  bool
	free   time.Time // time at which the prompts sent so far are computed
	sent   int
	served int
}

type simRequest struct {
	s        *sim
	a        Attempt
	node     *simNode
	work     Work
	generate int64
	sentAt   time.Time
	first    time.Time
	end      time.Time
	open     bool
	begun    bool
	verdict  Verdict
	refuse   bool
	computed int         // number of Prefilled calls
	again    *simRequest // the same request at another node, after the first attempt was given up
}

const (
	simBase     = 20 * time.Millisecond
	simPerToken = 100 * time.Microsecond // prefill, 10k tokens/s
	simITL      = 10 * time.Millisecond
	simStep     = 5 * time.Millisecond
)

func newSim(t *testing.T, nodes int) *sim {
	s := &sim{t: t, now: epoch.Add(time.Hour), rng: rand.New(rand.NewPCG(1, 2))}
	s.m = NewModel(Options{PatienceFloor: 100 * time.Millisecond, StallFloor: 500 * time.Millisecond,
		FirstByteCold: 30 * time.Second, FirstByte: 300 * time.Second})
	for range nodes {
		s.nodes = append(s.nodes, &simNode{n: s.m.Join(nil, s.now), slow: 1, free: s.now})
	}
	return s
}

func (r *simRequest) GiveUp(v Verdict) bool {
	if r.refuse {
		return false
	}
	r.verdict, r.open = v, false
	return true
}

func (r *simRequest) Prefilled() { r.computed++ }

// send dispatches one request. The model will produce generate tokens.
func (s *sim) send(node int, stream bool, prompt, maxTokens, generate int64) *simRequest {
	n := s.nodes[node]
	r := &simRequest{s: s, node: n, generate: generate, sentAt: s.now, open: true}
	r.work = Work{Stream: stream, UncachedTokens: prompt, MaxTokens: maxTokens, Owner: r}
	n.n.Begin(&r.a, s.now, r.work)
	n.sent++
	if n.free.Before(s.now) {
		n.free = s.now
	}
	noise := 0.8 + 0.4*s.rng.Float64()
	n.free = n.free.Add(time.Duration(n.slow * noise * float64(simPerToken) * float64(prompt)))
	r.first = n.free.Add(time.Duration(n.slow * noise * float64(simBase)))
	r.end = r.first.Add(time.Duration(n.slow * float64(simITL) * float64(generate)))
	s.reqs = append(s.reqs, r)
	return r
}

// leastQueued returns the node that a load-aware router would pick.
func (s *sim) leastQueued() int { return s.leastQueuedBut(nil) }

func (s *sim) leastQueuedBut(asked *simNode) int {
	best := -1
	for i, n := range s.nodes {
		if n.aside || n == asked {
			continue
		}
		if best < 0 || n.free.Before(s.nodes[best].free) {
			best = i
		}
	}
	return best
}

func (s *sim) run(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(simStep)
		for _, r := range slices.Clone(s.reqs) {
			if !r.step(s.now) {
				s.reqs = slices.DeleteFunc(s.reqs, func(o *simRequest) bool { return o == r })
			}
		}
		reported := len(s.stalls)
		s.stalls = s.m.Check(s.now, s.stalls)
		if s.checked {
			s.check(s.stalls[reported:])
		}
	}
}

// check answers completion checks for the reported nodes.
func (s *sim) check(reported []Stall) {
	for _, st := range reported {
		for _, n := range s.nodes {
			if n.n == st.Node && !n.hung {
				n.n.pulse.Beat(s.now.Add(time.Millisecond))
			}
		}
	}
}

// step advances the request to now. step returns true while the request is open.
func (r *simRequest) step(now time.Time) bool {
	switch {
	case !r.open:
		r.a.Done(now, 0, false)
		r.again = r.s.send(r.s.leastQueuedBut(r.node), r.work.Stream, r.work.UncachedTokens, r.work.MaxTokens,
			r.generate)
		return false
	case r.node.hung:
		return true
	}
	if r.work.Stream && !r.begun && !now.Before(r.first) {
		r.begun = true
		r.a.FirstByte(now)
	}
	if r.begun {
		r.a.Progress(now)
	}
	if now.Before(r.end) {
		return true
	}
	r.open = false
	r.node.served++
	r.a.Done(now, r.generate, true)
	return false
}

// warm teaches the model with n requests of various sizes on every node.
func (s *sim) warm(n int, stream bool) {
	reported := len(s.stalls)
	for range n {
		for i := range s.nodes {
			s.send(i, stream, 100+s.rng.Int64N(900), 0, 10)
		}
		s.run(150 * time.Millisecond)
	}
	s.run(3 * time.Second)
	if len(s.reqs) != 0 || len(s.stalls) != reported {
		s.t.Fatalf("warming up: %d open, stalls %v", len(s.reqs), s.stalls)
	}
}

func (s *sim) givenUp(reqs []*simRequest) (n int) {
	for _, r := range reqs {
		if r.verdict != 0 {
			n++
		}
	}
	return n
}
