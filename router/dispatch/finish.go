package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/prefix"
)

// Finish ends a job, whatever became of it: what the engine reported goes into the index
// and the metrics, and slot, permit and connection are given back. o is how
// the answer ended, if there was one. Neither the job nor anything got from it may be used
// afterwards, and nobody may still call Cancel.
func (d *Dispatcher) Finish(j *Job, o relay.Outcome) {
	if a := j.cur; a != nil && a.node != nil {
		d.settle(j, a, o)
		j.drop(a)
	}
	j.drop(j.kept)
	j.permit.Release()
	j.recycle()
}

// settle draws from a delivered answer what it says about its node.
func (d *Dispatcher) settle(j *Job, a *attempt, o relay.Outcome) {
	ok := o == relay.Complete && a.status < 300 && !j.stream.failed
	now := time.Now()
	j.wait.Done(now, j.Usage.Completion, ok)
	broke := j.broke(o)
	switch {
	case broke == "":
	case o == relay.IdleTimeout:
		d.cut(j, a, fleet.Timeout, broke)
	default:
		d.cut(j, a, fleet.Reset, broke)
	}
	if a.recorded {
		d.learn(j, a, ok, broke != "", now)
	}
	d.count(j, a, now)
}

// learn holds the prediction against what the engine found.
func (d *Dispatcher) learn(j *Job, a *attempt, ok, broken bool, now time.Time) {
	switch {
	case a.status >= 300, broken, j.stream.failed:
		d.index.Forget(&j.chain, a.ref, a.sent)
	case !d.options.Feedback:
	case j.Usage.HasCached && j.Usage.HasPrompt:
		a.node.cachedCounts.seen.Store(true)
		e := d.index.Observe(&j.chain, prefix.Observation{
			Ref: a.ref, Believed: a.believed,
			PromptTokens: j.Usage.Prompt, CachedTokens: j.Usage.Cached,
			EngineBlockTokens: a.node.Info().BlockTokens, DispatchedAt: a.sent, Uneven: j.Scan.Media > 0,
		})
		if j.Scan.Media == 0 {
			a.node.metrics.Prediction.Observe(e)
		}
	case ok && j.Usage.HasPrompt:
		a.node.metrics.Unreported.Inc()
		if a.node.cachedCounts.missing(a.matched > 0, a.sent, now) {
			d.log.Warn("this engine does not report cached tokens, so predictions for it go uncorrected; "+
				"start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report", "node", a.node.ID)
		}
	}
}

func (d *Dispatcher) count(j *Job, a *attempt, now time.Time) {
	m := &j.model.metrics
	m.Seconds.Observe(now.Sub(j.Received).Seconds())
	if j.Blocks > 0 {
		m.Overlap.Observe(float64(a.matched) / float64(j.Blocks))
	}
	if a.streams {
		m.TTFT.Observe(j.TTFT.Seconds())
		if s := &j.stream; s.events > 1 {
			m.ITL.Observe(s.last.Sub(s.first).Seconds() / float64(s.events-1))
			m.MaxGap.Observe(s.gap.Seconds())
		}
	}
	m.Prompt.Add(float64(j.Usage.Prompt))
	m.Completion.Add(float64(j.Usage.Completion))
	m.Cached.Add(float64(j.Usage.Cached))
}

// unreportedMin is how many answers without a count of cached tokens show that an engine reports none.
const unreportedMin = 5

// cachedCounts is what a node's answers have shown of its counts of cached tokens. Engines that report them leave them out
// where nothing was cached, so it takes answers of whose prompt the node was believed to have some, and to requests that were
// sent after the node had answered: what is still in prefill is believed too.
type cachedCounts struct {
	seen   atomic.Bool  // there was one
	first  atomic.Int64 // when the first answer without one ended, Unix nanoseconds; 0: there was none
	missed atomic.Int32
	said   atomic.Bool
}

// missing takes an answer without a count, and tells once when that means that the engine reports none.
func (c *cachedCounts) missing(matched bool, sent, now time.Time) bool {
	if c.seen.Load() || c.said.Load() {
		return false
	}
	first := c.first.Load()
	if first == 0 {
		c.first.CompareAndSwap(0, now.UnixNano())
	}
	if first == 0 || !matched || sent.UnixNano() < first {
		return false
	}
	return c.missed.Add(1) >= unreportedMin && !c.said.Swap(true)
}
