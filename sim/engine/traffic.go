package engine

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// traffic counts the requests of the HTTP side. traffic survives Kill.
type traffic struct {
	received, inFlight, maxInFlight, aborted, connections atomic.Int64
}

func (t *traffic) enter() {
	t.received.Add(1)
	n := t.inFlight.Add(1)
	for m := t.maxInFlight.Load(); n > m && !t.maxInFlight.CompareAndSwap(m, n); m = t.maxInFlight.Load() {
	}
}

func (t *traffic) leave(aborted bool) {
	t.inFlight.Add(-1)
	if aborted {
		t.aborted.Add(1)
	}
}

// Stats are an engine's counts. Counts of tokens, sequences and blocks begin again at zero after
// Kill. Counts of HTTP requests survive Kill.
type Stats struct {
	ID          string `json:"id"`
	Received    int64  `json:"received"`      // requests on paths of the API
	InFlight    int64  `json:"in_flight"`     // requests being answered
	MaxInFlight int64  `json:"max_in_flight"` // the maximum at one time
	Aborted     int64  `json:"aborted"`       // requests whose client left before the end
	Faults      int64  `json:"faults"`        // faults that struck
	Connections int64  `json:"connections"`   // open ones, of clients and of other engines

	Running    int64 `json:"running"` // sequences in the batch
	Waiting    int64 `json:"waiting"`
	MaxRunning int64 `json:"max_running"` // the maximum at one time, of each rank
	Completed  int64 `json:"completed"`   // sequences with a complete answer
	Preempted  int64 `json:"preempted"`

	PromptTokens    int64 `json:"prompt_tokens"`
	GeneratedTokens int64 `json:"generated_tokens"`
	CacheQueries    int64 `json:"cache_queries"` // prompt tokens looked up
	CacheHits       int64 `json:"cache_hits"`    // prompt tokens found
	UsedBlocks      int64 `json:"used_blocks"`   // needed by running sequences
	CachedBlocks    int64 `json:"cached_blocks"` // full blocks, used or not
	CapacityBlocks  int64 `json:"capacity_blocks"`
	Evictions       int64 `json:"evictions"`

	ComputedTokens int64 `json:"computed_tokens"` // prompt tokens computed here
	ReceivedTokens int64 `json:"received_tokens"` // prompt tokens whose blocks other engines sent
	LentRequests   int64 `json:"lent_requests"`   // prompts kept for other engines now
	LentBlocks     int64 `json:"lent_blocks"`     // their blocks, part of used_blocks
	Lent           int64 `json:"lent"`            // prompts computed for other engines
	ExpiredLeases  int64 `json:"expired_leases"`  // prompts that no engine read in time
	WrongBlocks    int64 `json:"wrong_blocks"`    // requests answered with blocks of another prompt
	LostBlocks     int64 `json:"lost_blocks"`     // requests whose blocks could not be read
	LoneLegs       int64 `json:"lone_legs"`       // prefills whose other leg did not come
}

// Stats returns the counts as of now.
func (e *Engine) Stats() Stats {
	s := Stats{
		ID: e.cfg.ID, Received: e.traffic.received.Load(), InFlight: e.traffic.inFlight.Load(),
		MaxInFlight: e.traffic.maxInFlight.Load(), Aborted: e.traffic.aborted.Load(),
		Faults: e.faults.struck.Load(), Connections: e.traffic.connections.Load(),
		CapacityBlocks: int64(e.cfg.CacheBlocks * e.cfg.DataParallel),
	}
	c := e.core()
	if c == nil {
		return s
	}
	s.CapacityBlocks = 0
	c.lender.stats(&s)
	for _, r := range c.ranks {
		s.add(r.stats())
	}
	return s
}

// RankStats returns the counts of each data-parallel rank as of now, without those of HTTP
// requests. RankStats returns nil after Kill.
func (e *Engine) RankStats() (all []Stats) {
	if c := e.core(); c != nil {
		for _, r := range c.ranks {
			all = append(all, r.stats())
		}
	}
	return all
}

// stats returns the rank's part of an engine's counts.
func (r *rank) stats() Stats {
	m := r.meters
	return Stats{
		Running: m.running.Load(), Waiting: m.waiting.Load(), MaxRunning: m.maxRunning.Load(),
		Completed: m.success[0].Load() + m.success[1].Load(), Preempted: m.preemptions.Load(),
		PromptTokens: m.prompt.Load(), GeneratedTokens: m.generated.Load(),
		CacheQueries: m.queries.Load(), CacheHits: m.hits.Load(),
		UsedBlocks: m.usedBlocks.Load(), CachedBlocks: m.cachedBlocks.Load(), Evictions: m.evictions.Load(),
		CapacityBlocks: int64(r.sched.cfg.CacheBlocks),
		ComputedTokens: m.filled.Load(), ReceivedTokens: m.received.Load(),
	}
}

// add adds the counts of a rank.
func (s *Stats) add(r Stats) {
	s.Running, s.Waiting, s.MaxRunning = s.Running+r.Running, s.Waiting+r.Waiting, s.MaxRunning+r.MaxRunning
	s.Completed, s.Preempted = s.Completed+r.Completed, s.Preempted+r.Preempted
	s.PromptTokens, s.GeneratedTokens = s.PromptTokens+r.PromptTokens, s.GeneratedTokens+r.GeneratedTokens
	s.CacheQueries, s.CacheHits = s.CacheQueries+r.CacheQueries, s.CacheHits+r.CacheHits
	s.UsedBlocks, s.CachedBlocks = s.UsedBlocks+r.UsedBlocks, s.CachedBlocks+r.CachedBlocks
	s.Evictions, s.CapacityBlocks = s.Evictions+r.Evictions, s.CapacityBlocks+r.CapacityBlocks
	s.ComputedTokens, s.ReceivedTokens = s.ComputedTokens+r.ComputedTokens, s.ReceivedTokens+r.ReceivedTokens
}

// Request is a request as it arrived, for tests of a proxy.
type Request struct {
	Method string      `json:"method"`
	Path   string      `json:"path"` // with the query
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// recorder keeps the last requests.
type recorder struct {
	keep int
	mu   sync.Mutex
	last []Request
}

func (k *recorder) add(r *http.Request, body []byte) {
	if k.keep == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.last) == k.keep {
		k.last = append(k.last[:0], k.last[1:]...)
	}
	k.last = append(k.last, Request{r.Method, r.URL.RequestURI(), r.Header.Clone(), body})
}

// Requests returns the last Config.RecordRequests requests, oldest first.
func (e *Engine) Requests() []Request {
	e.seen.mu.Lock()
	defer e.seen.mu.Unlock()
	return append([]Request(nil), e.seen.last...)
}
