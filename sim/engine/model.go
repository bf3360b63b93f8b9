package engine

import "time"

// Model is the inside of an Engine (batch, cache and cost of a step) without its API, its goroutine
// and its clock: whoever drives it says what time it is, so that thousands of them can live in one
// virtual time. Submit, Begin and End belong to one goroutine.
type Model struct {
	s *scheduler
}

// Work is one request to a Model. It must not be changed between Submit and its end.
type Work struct {
	// Blocks identify the full blocks of prompt and answer together, each with everything before
	// it.
	Blocks                     []BlockID
	PromptTokens, OutputTokens int // at least 1 each
	// For is the caller's own.
	For any

	q sequence
}

// BlockID identifies a full block and everything before it.
type BlockID = blockHash

// NewModel makes an idle engine with an empty cache. Of cfg only what describes batch, cache and
// cost is used; Speed is not, as there is no clock to be faster than.
func NewModel(cfg Config) (*Model, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Model{s: newScheduler(cfg, newMeters(), nil)}
	m.s.timer.Stop()
	return m, nil
}

// Submit lets w wait for a place in the batch, from now on, the time since the model's start.
func (m *Model) Submit(w *Work, now time.Duration) {
	w.q = sequence{
		work: w, size: w.PromptTokens, total: w.PromptTokens, hashes: w.Blocks, arrived: now,
		output: output{limit: w.OutputTokens, reason: "length"},
	}
	m.s.waiting = append(m.s.waiting, &w.q)
}

// Begin plans a step that begins now. It returns how long the step takes and how much of that is
// prefill; false if there is nothing to compute. End must follow once that time has passed.
func (m *Model) Begin(now time.Duration) (step, prefill time.Duration, busy bool) {
	m.s.now = now
	if step = m.s.plan(); step < 0 {
		return 0, 0, false
	}
	_, tokens := m.s.load()
	m.s.now += step
	return step, m.s.cfg.prefill(tokens), true
}

// End makes the results of the step visible and calls ended for each request that is complete.
func (m *Model) End(ended func(*Work)) {
	m.s.commit()
	for _, q := range m.s.ended {
		ended(q.work)
	}
}

// Cached is how many of the leading blocks the cache holds, whether in use or not.
func (m *Model) Cached(blocks []BlockID) int {
	for i := range blocks {
		if m.s.cache.blocks[blocks[i]] == nil {
			return i
		}
	}
	return len(blocks)
}

// CachedTokens is how many tokens of the prompt were found in the cache when the request was
// admitted.
func (w *Work) CachedTokens() int { return int(w.q.cached.Load()) }

// FirstToken is when the first token was there, since the model's start.
func (w *Work) FirstToken() time.Duration { return w.q.first }
