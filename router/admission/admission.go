// Package admission caps the requests in flight. The package queues nothing: a request over a cap
// is refused at once, so that its client can ask elsewhere. The package also holds the retry
// budget, which bounds the retries during an outage.
package admission

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// RetryAfterSeconds is the Retry-After value of a refusal.
const RetryAfterSeconds = 1

var (
	// ErrModelFull says that the (model, role) cap is reached: HTTP 503 with Retry-After.
	ErrModelFull = errors.New("admission: too many requests in flight for this model")
	// ErrGlobalFull says that the router's cap is reached: HTTP 429 with Retry-After.
	ErrGlobalFull = errors.New("admission: too many requests in flight in this router")
)

const maxHandlesDefault = 4096

// Options bound a Gate.
type Options struct {
	MaxQueue   int // requests in flight per (model, role); 0 = no cap
	Global     int // requests in flight in all; 0 = no cap
	MaxHandles int // (model, role) pairs counted apart; 0 = 4096. All further pairs share one counter and one cap
}

// Gate counts the requests in flight, per (model, role) and in all.
type Gate struct {
	global   counter
	maxQueue atomic.Int64

	mu         sync.Mutex
	maxHandles int
	handles    map[pair]*Handle
	overflow   *Handle
}

type pair struct{ model, role string }

// New returns a gate without requests in flight.
func New(o Options) *Gate {
	o.MaxHandles = cmp.Or(o.MaxHandles, maxHandlesDefault)
	g := &Gate{maxHandles: o.MaxHandles, handles: map[pair]*Handle{}}
	g.overflow = &Handle{gate: g}
	g.maxQueue.Store(int64(o.MaxQueue))
	g.global.limit.Store(int64(o.Global))
	return g
}

// SetMaxQueue changes the cap of every (model, role) without a cap of its own. Admitted requests
// keep their permits.
func (g *Gate) SetMaxQueue(n int) { g.maxQueue.Store(int64(n)) }

// InFlight returns the number of permits in use.
func (g *Gate) InFlight() int64 { return g.global.n.Load() }

// Full says whether the cap on all requests is reached.
func (g *Gate) Full() bool { return g.global.full(g.global.limit.Load()) }

// Drop forgets the counters of a model, unless the model has requests in flight.
func (g *Gate) Drop(model string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := func(p pair, _ *Handle) bool { return p.model == model }
	for p, h := range g.handles {
		if of(p, h) && h.InFlight() > 0 {
			return false
		}
	}
	maps.DeleteFunc(g.handles, of)
	return true
}

// Each calls f for every (model, role) with a counter of its own.
func (g *Gate) Each(f func(model, role string, inFlight, limit int64)) {
	g.mu.Lock()
	handles := slices.Collect(maps.Values(g.handles))
	g.mu.Unlock()
	for _, h := range handles {
		f(h.model, h.role, h.InFlight(), h.limit())
	}
}

// Handle returns the counter of a (model, role). Handle returns the same counter until Drop. Handle
// takes a lock: call it when a fleet snapshot is built and keep the result with the snapshot.
func (g *Gate) Handle(model, role string) *Handle {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.handles[pair{model, role}]; h != nil {
		return h
	}
	if len(g.handles) >= g.maxHandles {
		return g.overflow
	}
	h := &Handle{gate: g, model: model, role: role}
	g.handles[pair{model, role}] = h
	return h
}

// Handle admits the requests of one (model, role).
type Handle struct {
	gate        *Gate
	model, role string
	own         counter
}

// SetMax gives this (model, role) a cap of its own; 0 or less returns it to the gate's cap. A
// counter that several pairs share always keeps the gate's cap.
func (h *Handle) SetMax(n int) {
	if h != h.gate.overflow {
		h.own.limit.Store(int64(max(n, 0)))
	}
}

// InFlight returns the number of permits of this (model, role) in use.
func (h *Handle) InFlight() int64 { return h.own.n.Load() }

// Full says whether the cap of this (model, role) is reached.
func (h *Handle) Full() bool { return h.own.full(h.limit()) }

func (h *Handle) limit() int64 {
	if own := h.own.limit.Load(); own != 0 {
		return own
	}
	return h.gate.maxQueue.Load()
}

// Admit returns a permit, or ErrModelFull or ErrGlobalFull. Admit neither blocks nor allocates.
func (h *Handle) Admit() (Permit, error) {
	// The model's counter is raised first. A full router lowers it again. In between, the raised
	// counter can refuse only requests that the full router refuses as well.
	if !h.own.take(h.limit()) {
		return Permit{}, ErrModelFull
	}
	if !h.gate.global.take(h.gate.global.limit.Load()) {
		h.own.n.Add(-1)
		return Permit{}, ErrGlobalFull
	}
	return Permit{handle: h}, nil
}

// Permit admits one request until the request ends. Keep a Permit in one variable. Any goroutine
// may call Release on that variable, more than once. Do not call Release on a copy.
type Permit struct {
	handle   *Handle
	released uint32
}

// Out says whether the permit is still held.
func (p *Permit) Out() bool { return p.handle != nil && atomic.LoadUint32(&p.released) == 0 }

// On says whether the permit is held and counts for h.
func (p *Permit) On(h *Handle) bool { return p.handle == h && p.Out() }

// Move makes a held permit count for another (model, role). Move returns ErrModelFull and changes
// nothing when that (model, role) is full. Don't run Move at the same time as Release.
func (p *Permit) Move(to *Handle) error {
	if p.handle == to {
		return nil
	}
	if !to.own.take(to.limit()) {
		return ErrModelFull
	}
	p.handle.own.n.Add(-1)
	p.handle = to
	return nil
}

// Release gives the permit back. Release does nothing on the zero Permit and after the first call.
func (p *Permit) Release() {
	if p.handle == nil || !atomic.CompareAndSwapUint32(&p.released, 0, 1) {
		return
	}
	p.handle.own.n.Add(-1)
	p.handle.gate.global.n.Add(-1)
}

type counter struct {
	n, limit atomic.Int64
}

func (c *counter) full(limit int64) bool { return limit > 0 && c.n.Load() >= limit }

// take adds one, unless the sum would exceed limit (0 or less = no limit). A failed take never
// shows in n, so it cannot make another take fail.
func (c *counter) take(limit int64) bool {
	if limit <= 0 {
		c.n.Add(1)
		return true
	}
	for {
		n := c.n.Load()
		if n >= limit {
			return false
		}
		if c.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
