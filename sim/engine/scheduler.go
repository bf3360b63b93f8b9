package engine

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxLag bounds how far the simulation may fall behind the wall clock and catch up by steps without
// a pause. Beyond maxLag the engine becomes slower.
const maxLag = 100 * time.Millisecond

// scheduler is the engine's batch. One goroutine admits, prefills, decodes and frees sequences,
// step by step.
type scheduler struct {
	cfg     Config
	cache   *cache
	meters  *meters
	events  *eventLog // nil without KV events
	loras   *loras    // nil in a Model
	lender  *lender   // nil in a Model
	outside Outside   // nil: no blocks are kept outside

	waiting []*sequence
	running []*sequence
	ended   []*sequence   // ended in the last step
	now     time.Duration // simulated time since start
	loading time.Duration // time in the planned step to load adapters, and blocks from outside
	timer   *time.Timer

	mu    sync.Mutex
	inbox []*sequence
	back  []*sequence // ended sequences whose lent blocks are free now
	clear atomic.Bool // of reset
	stop  bool
	quit  chan struct{} // closed with stop
	wake  chan struct{}
	done  chan struct{} // closed when run returns
}

func newScheduler(cfg Config, m *meters, events *eventLog) *scheduler {
	s := &scheduler{
		cfg: cfg, meters: m, events: events, timer: time.NewTimer(time.Hour),
		quit: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.cache = newCache(cfg.CacheBlocks, func(h blockHash) {
		m.evictions.Add(1)
		events.removed(h)
	})
	return s
}

// submit queues sequences for the next step. After close the sequences end at once.
func (s *scheduler) submit(qs []*sequence) {
	s.mu.Lock()
	stopped := s.stop
	if !stopped {
		s.inbox = append(s.inbox, qs...)
	}
	s.mu.Unlock()
	if stopped {
		s.discard(qs)
	}
	s.poke()
}

// giveBack frees the blocks of an ended sequence before the next step. After close giveBack does
// nothing.
func (s *scheduler) giveBack(q *sequence) {
	s.mu.Lock()
	s.back = append(s.back, q)
	s.mu.Unlock()
	s.poke()
}

// reset forgets all blocks before the next step, unless one is in use.
func (s *scheduler) reset() {
	s.clear.Store(true)
	s.poke()
}

// close ends run and all incomplete sequences. Call close once.
func (s *scheduler) close() {
	s.mu.Lock()
	s.stop = true
	close(s.quit)
	s.mu.Unlock()
	<-s.done
}

func (s *scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run steps until close. A step's result becomes visible after its time has passed.
func (s *scheduler) run() {
	defer close(s.done)
	defer s.timer.Stop()
	began := time.Now()
	due := began
	for s.receive() {
		d := s.cfg.slow(s.plan(), time.Duration(float64(time.Since(began))*s.cfg.Speed))
		if d < 0 {
			s.idle()
			due = time.Now()
			continue
		}
		host := burn(s.cfg.StepCPU)
		due = due.Add(host + time.Duration(float64(d)/s.cfg.Speed))
		s.sleep(time.Until(due))
		if latest := time.Now().Add(-maxLag); due.Before(latest) {
			due = latest
		}
		s.now += d + time.Duration(float64(host)*s.cfg.Speed)
		s.commit()
	}
}

// burn uses CPU time on one thread. burn returns the elapsed time.
func burn(cpu time.Duration) time.Duration {
	if cpu <= 0 {
		return 0
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for until := threadTime() + cpu; threadTime() < until; {
		for range 1000 { // a look at the clock is a system call
		}
	}
	return time.Since(began)
}

func (s *scheduler) idle() {
	select {
	case <-s.wake:
	case <-s.quit:
	}
}

func (s *scheduler) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	s.timer.Reset(d)
	select {
	case <-s.timer.C:
	case <-s.quit:
	}
}

// receive queues the new sequences and drops the aborted ones. receive returns false once the
// engine closes.
func (s *scheduler) receive() bool {
	s.mu.Lock()
	in, back, stop := s.inbox, s.back, s.stop
	s.inbox, s.back = nil, nil
	s.mu.Unlock()
	for _, q := range back {
		s.free(q)
	}
	if s.clear.Swap(false) && s.cache.clear() {
		s.events.cleared()
	}
	for _, q := range in {
		q.arrived = s.now
	}
	s.waiting = append(s.waiting, in...)
	if stop {
		s.discard(s.waiting)
		s.discard(s.running)
		return false
	}
	s.waiting = slices.DeleteFunc(s.waiting, s.dropAborted)
	s.running = slices.DeleteFunc(s.running, s.dropAborted)
	s.gauge()
	return true
}

func (s *scheduler) discard(qs []*sequence) {
	for _, q := range qs {
		q.over.Store(true)
		q.notify()
	}
}

func (s *scheduler) dropAborted(q *sequence) bool {
	if !q.aborted.Load() {
		return false
	}
	s.free(q)
	s.meters.finished("abort")
	q.over.Store(true)
	q.notify()
	return true
}

// plan fills the next step and returns its simulated duration, or -1 if there is nothing to
// compute.
func (s *scheduler) plan() time.Duration {
	budget := s.cfg.MaxBatchTokens
	preempted := false
	s.loading = 0
	for i := 0; i < len(s.running); i++ {
		q := s.running[i]
		q.chunk = min(q.total-q.computed, budget)
		for !s.grow(q) {
			preempted = true
			s.preempt()
			if i >= len(s.running) {
				break
			}
		}
		if i < len(s.running) {
			budget -= q.chunk
		}
	}
	for at := 0; !preempted && budget > 0 && at < len(s.waiting) && len(s.running) < s.cfg.MaxSeqs; {
		if s.beyondLoRAs(s.waiting[at]) {
			at++ // others go first
			continue
		}
		n := s.admit(at, budget)
		if n == 0 {
			break
		}
		budget -= n
	}
	return s.duration()
}

// beyondLoRAs says whether the sequence's adapter would be one too many in the batch.
func (s *scheduler) beyondLoRAs(q *sequence) bool {
	if q.adapter == "" {
		return false
	}
	var others []string
	for _, r := range s.running {
		if r.adapter == q.adapter {
			return false
		}
		if r.adapter != "" && !slices.Contains(others, r.adapter) {
			others = append(others, r.adapter)
		}
	}
	return len(others) >= s.cfg.MaxLoRAs
}

// admit moves a waiting sequence into the batch with a chunk of at most budget tokens. admit
// returns the size of the chunk, or 0 if the sequence's blocks do not fit.
func (s *scheduler) admit(at, budget int) int {
	q := s.waiting[at]
	if !s.cfg.NoPrefixCache {
		// The last token is always computed, because its logits are the answer.
		q.held = s.cache.match(q.held, q.hashes[:min(len(q.hashes), (q.total-1)/s.cfg.BlockTokens)])
	}
	if s.outside != nil && !q.preloaded() {
		s.fetch(q)
	}
	q.computed = len(q.held) * s.cfg.BlockTokens
	cached := q.computed
	if q.preloaded() {
		q.computed = q.size - 1
	}
	q.chunk = min(q.total-q.computed, budget)
	if !s.grow(q) {
		s.free(q)
		return 0
	}
	if q.produced.Load() == 0 {
		q.admitted = s.now
		q.cached.Store(int64(cached))
		s.meters.admitted(q)
	}
	if q.adapter != "" && s.loras.use(q.adapter) {
		s.loading += s.cfg.AdapterLoad
	}
	if at == 0 {
		s.waiting = s.waiting[1:]
	} else {
		s.waiting = slices.Delete(s.waiting, at, at+1)
	}
	s.running = append(s.running, q)
	return q.chunk
}

// fetch loads the blocks behind the cached ones from outside, as far as memory allows.
func (s *scheduler) fetch(q *sequence) {
	rest := q.hashes[len(q.held):max(min(len(q.hashes), (q.total-1)/s.cfg.BlockTokens), len(q.held))]
	if room := s.cfg.CacheBlocks - s.cache.used() - 1; len(rest) > room { // one is for the last token
		rest = rest[:max(room, 0)]
	}
	if len(rest) == 0 {
		return
	}
	n, took := s.outside.Load(rest)
	if s.loading += took; !s.cache.take(n) {
		return
	}
	for _, h := range rest[:n] {
		b, _ := s.cache.fill(h)
		q.held = append(q.held, b)
	}
}

// preempt moves the youngest running sequence back to the head of the queue. The sequence must
// compute its evicted blocks again.
func (s *scheduler) preempt() {
	last := len(s.running) - 1
	q := s.running[last]
	s.running = s.running[:last]
	s.free(q)
	q.redone = true
	s.meters.preemptions.Add(1)
	s.waiting = slices.Insert(s.waiting, 0, q)
}

// duration is the simulated time of the planned step.
func (s *scheduler) duration() time.Duration {
	if len(s.running) == 0 {
		return -1
	}
	w := s.load()
	d := s.loading + s.cfg.prefill(w)
	if w.decode > 0 {
		d += s.cfg.DecodeStep + time.Duration(w.decode)*s.cfg.DecodePerSequence +
			time.Duration(w.blocks)*s.cfg.DecodePerBlock
	}
	return d
}

// stepLoad is the work of a step.
type stepLoad struct {
	decode int // decoding sequences
	blocks int // KV blocks that these read
	tokens int // prompt tokens
	before int // sum over the prompt tokens of the tokens before each
}

// load returns the work of the planned step.
func (s *scheduler) load() (w stepLoad) {
	for _, q := range s.running {
		if q.decodes() {
			w.decode++
			w.blocks += len(q.held) + q.loose
		} else {
			w.tokens += q.chunk
			w.before += q.chunk*q.computed + q.chunk*(q.chunk-1)/2
		}
	}
	return w
}

// prefill returns the time for the prompt tokens of w.
func (c *Config) prefill(w stepLoad) time.Duration {
	tokens := float64(w.tokens)
	if c.PrefillDoublesAt > 0 {
		tokens += float64(w.before) / float64(c.PrefillDoublesAt)
	}
	return time.Duration(tokens / c.PrefillTokensPerSecond * float64(time.Second))
}

// commit makes the step's results visible: newly full blocks, one token for each sequence with all
// its tokens computed, and the ends. commit wakes requests last. Events and metrics are then in
// place for the next request.
func (s *scheduler) commit() {
	tokens := 0
	for _, q := range s.running {
		tokens += q.chunk
		if !q.decodes() {
			s.meters.filled.Add(int64(q.chunk))
		}
		q.computed += q.chunk
		s.fill(q)
		if q.computed == q.total {
			s.produce(q)
		}
	}
	s.meters.step(tokens)
	if s.cfg.MaxLoRAs > 0 {
		s.loras.ran(s.running)
	}
	s.events.publish()
	s.retire()
	s.gauge()
	if s.cfg.MaxLoRAs > 0 && len(s.running) == 0 {
		s.loras.ran(nil)
	}
	for _, q := range s.running {
		if q.computed == q.total-1 {
			q.notify()
		}
	}
	s.discard(s.ended)
}

// retire moves finished sequences from running to ended.
func (s *scheduler) retire() {
	s.ended = s.ended[:0]
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool {
		if q.produced.Load() < int64(q.output.limit) {
			return false
		}
		if !s.lender.lend(q, s) && (q.work == nil || !q.work.Lent) {
			s.free(q)
		}
		s.meters.completed(q, s.now)
		s.ended = append(s.ended, q)
		return true
	})
}

// produce gives q its next token.
func (s *scheduler) produce(q *sequence) {
	s.meters.token(q, s.now)
	q.total++
	q.produced.Add(1)
}

// gauge publishes the sizes for /metrics and /sim/stats.
func (s *scheduler) gauge() {
	s.meters.running.Store(int64(len(s.running)))
	s.meters.waiting.Store(int64(len(s.waiting)))
	s.meters.usedBlocks.Store(int64(s.cache.used()))
	s.meters.cachedBlocks.Store(int64(len(s.cache.blocks)))
	s.meters.peak(int64(len(s.running)))
}

// grow allocates the blocks that q's chunk needs beyond its present ones.
func (s *scheduler) grow(q *sequence) bool {
	blocks := (q.computed + q.chunk + s.cfg.BlockTokens - 1) / s.cfg.BlockTokens
	need := blocks - len(q.held) - q.loose
	if need <= 0 {
		return true
	}
	if !s.cache.take(need) {
		return false
	}
	q.loose += need
	return true
}

func (s *scheduler) free(q *sequence) {
	s.cache.release(q.held, q.loose)
	q.held, q.loose, q.computed = nil, 0, 0
}

// fill hashes the blocks that q's chunk completed and announces new ones.
func (s *scheduler) fill(q *sequence) {
	full, from := q.computed/s.cfg.BlockTokens, len(q.held)
	if full == from {
		return
	}
	if full > len(q.hashes) {
		tokens := q.tokens(len(q.hashes)*s.cfg.BlockTokens, full*s.cfg.BlockTokens)
		q.hashes = hashChain(q.hashes, tokens, s.cfg.BlockTokens, q.root())
	}
	stored := from
	for i := from; i < full; i++ {
		b, isNew := s.cache.fill(q.hashes[i])
		q.held, q.loose = append(q.held, b), q.loose-1
		if isNew && s.outside != nil {
			s.outside.Store(q.hashes[i])
		}
		if !isNew {
			s.events.stored(q, stored, i, s.cfg.BlockTokens)
			stored = i + 1
		}
	}
	s.events.stored(q, stored, full, s.cfg.BlockTokens)
}
