package leg

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
)

// Finish ends the leg after any outcome. Finish records the engine's report in the index and in the
// metrics. Finish frees slot, permit and connection. o is the end of the answer, if an answer came.
// Do not use the leg or its parts afterwards.
func (l *Leg) Finish(o relay.Outcome) {
	defer l.giveBack() // runs even if settle panics
	defer l.traceEnd(o)
	switch a := l.now; {
	case a == nil || a.member == nil:
	case !a.taken: // a bug ended the leg; the node is not at fault
		l.wait.Done(time.Now(), 0, false)
		if a.recorded {
			l.prompt.Failed(a.ref, a.sent)
		}
	default:
		l.settle(a, o)
	}
}

// giveBack settles the leg's turn, and frees slots, connections, permit and the leg itself.
func (l *Leg) giveBack() {
	defer l.free() // runs even if settleTurn panics
	l.settleTurn()
}

// free frees slots, connections, permit and the leg itself.
func (l *Leg) free() {
	if l.hand != nil {
		l.hand.release()
		l.hand = nil
	}
	for i := range l.slots {
		l.drop(&l.slots[i])
	}
	if l.permit.Out() { // a leg without one held no room
		l.permit.Release()
		l.d.waiting.Queue.Wake()
	}
	l.dropLesson()
	l.recycle()
}

// settle judges the node by its delivered answer and learns from it.
func (l *Leg) settle(a *attempt, o relay.Outcome) {
	ok := o == relay.Complete && a.status < 300 && !l.Reading.Failed
	now := time.Now()
	l.wait.Done(now, l.Reading.Usage.Completion, ok)
	l.sessionEnded(a, now)
	broke := l.broke(o)
	switch {
	case broke == "":
	case o == relay.IdleTimeout:
		l.cut(a, health.Timeout, broke)
	default:
		l.cut(a, health.Reset, broke)
	}
	if a.recorded {
		l.learn(a, ok, broke != "", now)
	}
	if ok {
		if !l.Continues { // the length of a rest says nothing about whole answers
			l.lengthCame(a, l.Reading.Usage.Completion)
		}
		l.endCame(a, l.Reading.Events, l.Reading.Usage.Completion, l.Reading.Last)
		l.giveLesson(a)
	} else {
		l.silenceCame(a, now)
	}
	if a.forecast.took > 0 && l.d.log.Enabled(context.Background(), slog.LevelDebug) {
		l.logAnswer(a)
	}
	if l.Work == Answer {
		l.count(a, now)
	} else if ok {
		l.model.metrics.Prefill.Observe(now.Sub(a.sent).Seconds())
	}
}

// learn compares the prediction with the cached tokens that the engine found.
func (l *Leg) learn(a *attempt, ok, broken bool, now time.Time) {
	used := &l.Reading.Usage
	switch {
	case a.status >= 300, broken, l.Reading.Failed:
		l.prompt.Failed(a.ref, a.sent)
	case a.split: // the engine repeats what P found cached
	case !l.d.o.Feedback:
	case used.HasCached && used.HasPrompt:
		a.member.node.cachedCounts.seen.Store(true)
		l.learnUsage(a, used.Cached)
		l.prompt.Confirm(a.promised, used.Prompt, used.Cached, a.member.node.Info().BlockTokens)
		e := l.prompt.Learn(prefix.Observation{
			Ref: a.ref, Believed: a.believed, PromptTokens: used.Prompt, CachedTokens: used.Cached,
			EngineBlockTokens: a.member.node.Info().BlockTokens, DispatchedAt: a.sent,
		})
		if !l.prompt.Uneven() {
			a.member.node.metrics.Prediction.Observe(e)
		}
	case ok && used.HasPrompt:
		if a.member.node.cachedCounts.seen.Load() { // the engine leaves out a count of 0
			l.learnUsage(a, 0)
		}
		a.member.node.metrics.Unreported.Inc()
		if a.member.node.cachedCounts.missing(a.matched > 0, a.sent, now) {
			l.d.log.Warn("this engine does not report cached tokens, so predictions for it go uncorrected; "+
				"start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report", "node", a.member.node.ID)
		}
	}
}

// learnUsage compares the blocks that the hosts' caches report with the cached tokens that the
// engine found. The blocks in the engine's own memory count as the reports do, because the
// prediction by the text of a known beginning has other blocks.
func (l *Leg) learnUsage(a *attempt, cached int64) {
	if !l.prompt.Uneven() {
		a.member.node.usage.Learn(a.reach, int(a.coming), cached, a.member.node.Info().BlockTokens)
	}
}

// count adds an answer to the model's metrics.
func (l *Leg) count(a *attempt, now time.Time) {
	m, r := &l.model.metrics, &l.Reading
	m.Seconds.Observe(now.Sub(l.Request.Received).Seconds())
	if l.prompt.Blocks > 0 {
		m.Overlap.Observe(float64(a.matched) / float64(l.prompt.Blocks))
	}
	if a.streams {
		if !l.Continues {
			m.TTFT.Observe(l.TTFT.Seconds())
		}
		if r.Events > 1 {
			m.ITL.Observe(r.MeanGap().Seconds())
			m.MaxGap.Observe(r.Gap.Seconds())
		}
	}
	u := l.Usage()
	m.Prompt.Add(float64(u.Prompt))
	m.Completion.Add(float64(u.Completion))
	m.Cached.Add(float64(u.Cached))
	l.countTiers(a, &u)
}

// countTiers counts the cached tokens by tier: those that were believed, and those that the engine
// found.
func (l *Leg) countTiers(a *attempt, u *usage.Counts) {
	m := &l.model.metrics
	if a.split {
		m.CountPrefill(float64(u.Cached))
		return
	}
	var believed metrics.ByTier
	if u.HasPrompt && (u.HasCached || a.member.node.cachedCounts.seen.Load()) && !l.prompt.Uneven() {
		perBlock := float64(u.Prompt) * prefix.BlockTokens / float64(max(l.prompt.Tokens(), 1))
		nearer := int32(0)
		r := &a.reach
		for i, blocks := range [...]int32{max(r.Device, a.coming), r.Host, r.Disk, r.Shared} {
			believed[i] = float64(max(blocks-nearer, 0)) * perBlock
			nearer = max(nearer, blocks)
		}
	}
	m.CountTiers(&believed, float64(u.Cached))
}

// unreportedMin is the number of answers without a count of cached tokens after which an engine
// counts as one that reports none.
const unreportedMin = 5

// cachedCounts records whether a node's answers report cached tokens. Engines omit the report when
// nothing was cached. So an answer counts only if its prompt was believed to be partly cached. Its
// request must also have been sent after the end of the first answer without a count, because a
// prompt in prefill counts as cached, too.
type cachedCounts struct {
	seen   atomic.Bool  // a count has been seen
	first  atomic.Int64 // end of the first answer without a count, Unix ns; 0: there was none
	missed atomic.Int32
	said   atomic.Bool
}

// missing counts an answer without a count. missing returns true once, when the engine counts as
// one that reports none.
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
