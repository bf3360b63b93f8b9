package engine

import "time"

// Model is the inside of an Engine (batch, cache and cost of a step) without its API, goroutine and
// clock. A Model's caller sets the time, so thousands of models can share one virtual time. One
// goroutine calls Submit, Begin and End.
type Model struct {
	s *scheduler
}

// Work is one request to a Model. Do not change a Work between Submit and its end.
type Work struct {
	// Blocks identify the full blocks of prompt and answer together, each with everything before
	// it.
	Blocks                     []BlockID
	PromptTokens, OutputTokens int // at least 1 each
	// Received says that the blocks of the prompt come from another model, so that only its last
	// token is computed.
	Received bool
	// Lent keeps the blocks after the end, for another model to receive, until Return.
	Lent bool
	// For belongs to the caller.
	For any

	q sequence
}

// BlockID identifies a full block together with everything before it.
type BlockID = blockHash

// Outside keeps blocks outside of a Model's memory, as a KV connector and a cache of the host do.
type Outside interface {
	// Load returns how many of the leading blocks the model gets, and the time that its batch waits
	// for them.
	Load(blocks []BlockID) (n int, took time.Duration)
	// Store keeps a block that the model has computed.
	Store(b BlockID)
}

// NewModel makes an idle engine with an empty cache. NewModel uses only the fields of cfg about
// batch, cache and cost. Slowdowns count from the model's start and are not divided by Speed.
func NewModel(cfg Config) (*Model, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Model{s: newScheduler(cfg, newMeters(), nil)}
	m.s.timer.Stop()
	return m, nil
}

// Keep makes the model load blocks from o and store blocks there. Call Keep before Submit.
func (m *Model) Keep(o Outside) { m.s.outside = o }

// Submit queues w for the batch at now, the time since the model's start.
func (m *Model) Submit(w *Work, now time.Duration) {
	w.q = sequence{
		work: w, size: w.PromptTokens, total: w.PromptTokens, hashes: w.Blocks, arrived: now,
		output: output{limit: w.OutputTokens, reason: "length"}, received: w.Received,
	}
	m.s.waiting = append(m.s.waiting, &w.q)
}

// Begin plans a step that begins now. Begin returns the duration of the step and the prefill's part
// of it. busy is false without anything to compute. Call End once the step's time has passed.
func (m *Model) Begin(now time.Duration) (step, prefill time.Duration, busy bool) {
	m.s.now = now
	planned := m.s.plan()
	if planned < 0 {
		return 0, 0, false
	}
	step, prefill = m.spend(planned, now), m.spend(m.s.cfg.prefill(m.s.load()), now)
	m.s.now += step
	return step, prefill, true
}

// spend returns the time that work of duration d takes in a step that begins at now.
func (m *Model) spend(d, now time.Duration) time.Duration {
	if speed := m.s.cfg.Speed; speed != 1 {
		d = time.Duration(float64(d) / speed)
	}
	return m.s.cfg.slow(d, now)
}

// End makes the results of the step visible. End calls ended for each complete request.
func (m *Model) End(ended func(*Work)) {
	m.s.commit()
	for _, q := range m.s.ended {
		ended(q.work)
	}
}

// Return frees the blocks of w, which was Lent and has ended. They stay in the cache until others
// need the memory.
func (m *Model) Return(w *Work) { m.s.free(&w.q) }

// Cached returns how many of the leading blocks are in the cache, in use or not.
func (m *Model) Cached(blocks []BlockID) int {
	for i := range blocks {
		if m.s.cache.blocks[blocks[i]] == nil {
			return i
		}
	}
	return len(blocks)
}

// Usage is the state of a Model, as an engine's metrics tell it.
type Usage struct {
	Running, Waiting   int // requests
	UsedBlocks, Blocks int // KV blocks: those that requests use, and all
	Preemptions        int // since the model's start
	Prefilled          int // prompt tokens computed since then
}

// Usage returns the present state.
func (m *Model) Usage() Usage {
	return Usage{
		Running: len(m.s.running), Waiting: len(m.s.waiting), UsedBlocks: m.s.cache.used(),
		Blocks: m.s.cfg.CacheBlocks, Preemptions: int(m.s.meters.preemptions.Load()),
		Prefilled: int(m.s.meters.filled.Load()),
	}
}

// Produced returns the number of tokens of the answer so far.
func (w *Work) Produced() int { return int(w.q.produced.Load()) }

// CachedTokens returns how many prompt tokens were cached when the request was admitted.
func (w *Work) CachedTokens() int { return int(w.q.cached.Load()) }

// FirstToken returns the time of the first token, since the model's start.
func (w *Work) FirstToken() time.Duration { return w.q.first }
