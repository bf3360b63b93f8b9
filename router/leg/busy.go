package leg

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/prefix"
)

// activeBlocks returns the KV blocks of this router's requests at n, in blocks of n's engine.
func (n *member) activeBlocks() float64 {
	return n.rank.Book.Blocks() * prefix.BlockTokens / float64(cmp.Or(n.node.Info().BlockTokens, prefix.BlockTokens))
}

// figures returns what is known of n's load at now.
func (n *member) figures(now time.Time) busy.Figures {
	f := busy.Figures{
		PrefillTokens: n.prefill(now), MaxBatchedTokens: int64(n.node.Info().MaxBatchedTokens),
		ActiveBlocks: n.activeBlocks(), UsedBlocks: -1,
	}
	load := n.rank.Load()
	free, freeKnown := load.FreeBlocks.Get()
	usage, usageKnown := load.KVUsage.Get()
	switch total, known := load.TotalBlocks.Get(); {
	case known && total > 0:
		f.TotalBlocks = total
		if freeKnown {
			f.UsedBlocks = total - free
		} else if usageKnown {
			f.UsedBlocks = usage * total
		}
	case usageKnown:
		f.UsedBlocks, f.TotalBlocks, f.ActiveBlocks = usage, 1, 0 // the share is known, the number is not
	}
	if !load.Engine.At.IsZero() {
		f.Age = load.Engine.At.Age(now)
	}
	// The report is from a time at which only requests of this router ran. They have ended since.
	if told, _ := load.InFlight.Get(); told > 0 && load.Others == 0 && n.rank.InFlight() == 0 {
		f.UsedBlocks = min(f.UsedBlocks, 0)
	}
	return f
}

// busy returns the threshold of t that n exceeds. t is nil if none is set. An explanation leaves
// the latch of n as it is.
func (l *Leg) busy(n *member, t *busy.Thresholds, now time.Time) busy.Reason {
	if t == nil {
		return busy.Not
	}
	f := n.figures(now)
	if l.picks.scope == scopeExplain {
		return t.Look(&f, n.latch)
	}
	return t.Busy(&f, n.latch)
}

// whyBusy describes the threshold that n exceeds.
func (l *Leg) whyBusy(n *member, now time.Time) string {
	t := l.thresholds()
	if t == nil {
		t = &busy.Thresholds{}
	}
	f := n.figures(now)
	return t.Why(t.Look(&f, n.latch), &f)
}

// thresholds returns the busy thresholds of the leg's model, or nil if none is set.
func (l *Leg) thresholds() *busy.Thresholds { return l.d.busy.Of(l.model.name) }

// tokens returns the figures for the queue's threshold of prompt tokens.
func (n *member) tokens(now time.Time) busy.Figures {
	return busy.Figures{PrefillTokens: n.prefill(now), MaxBatchedTokens: int64(n.node.Info().MaxBatchedTokens)}
}

// overTokens returns the threshold of the queue that n exceeds.
func (l *Leg) overTokens(n *member, now time.Time) busy.Reason {
	f := n.tokens(now)
	return l.d.waiting.Active.Look(&f, n.latch)
}

// whyTokens describes that threshold.
func (l *Leg) whyTokens(n *member, now time.Time) string {
	set := &l.d.waiting.Active
	switch f := n.tokens(now); set.Look(&f, n.latch) {
	case busy.ByTokens:
		return fmt.Sprintf("%d prompt tokens wait for prefill, router.queue.active_tokens is %d",
			f.PrefillTokens, *set.PrefillTokens)
	case busy.ByFraction:
		return fmt.Sprintf("%d prompt tokens wait for prefill, router.queue.active_tokens_frac is %g of %d",
			f.PrefillTokens, *set.PrefillFraction, f.MaxBatchedTokens)
	}
	return "too many prompt tokens waited for prefill a moment ago"
}
