// Package busy decides which nodes are too busy for further requests of a model. The thresholds
// are an operator's. A node is busy if the prefill tokens at the node exceed their threshold, or if
// its KV blocks in use do. A figure that is not known makes no node busy.
package busy

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Thresholds are the limits of one model, and a section of a policy. A nil limit is not set.
// Thresholds are immutable once published. The tags are those of package policy.
type Thresholds struct {
	// DecodeBlocks is a share of the node's KV blocks in use.
	DecodeBlocks *float64 `json:"active_decode_blocks_threshold,omitempty" range:"0..1"`
	// PrefillTokens counts prompt tokens that wait for their computation.
	PrefillTokens *int `json:"active_prefill_tokens_threshold,omitempty" range:"0..1099511627776"`
	// PrefillFraction is PrefillTokens as a share of the tokens that the engine computes at once.
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac,omitempty" range:"0..1099511627776"`
}

// IsZero says whether no limit is set.
func (t Thresholds) IsZero() bool { return t == Thresholds{} }

// over returns t with the limits of other that are set in place of its own.
func (t Thresholds) over(other Thresholds) Thresholds {
	if other.DecodeBlocks != nil {
		t.DecodeBlocks = other.DecodeBlocks
	}
	if other.PrefillTokens != nil {
		t.PrefillTokens = other.PrefillTokens
	}
	if other.PrefillFraction != nil {
		t.PrefillFraction = other.PrefillFraction
	}
	return t
}

// Figures are what is known of a node's load.
type Figures struct {
	PrefillTokens    int64 // prompt tokens at the node that are not computed yet
	MaxBatchedTokens int64 // tokens that the engine computes at once; 0: unknown
	// UsedBlocks are the KV blocks in use, by the node's own report. A negative number is unknown.
	UsedBlocks float64
	Age        time.Duration // of the report; 0: unknown
	// ActiveBlocks are the KV blocks of this router's requests at the node.
	ActiveBlocks float64
	TotalBlocks  float64 // 0: unknown
}

// Reason is the threshold that makes a node busy.
type Reason uint8

// These are the reasons. Not means that the node is not busy.
const (
	Not Reason = iota
	ByTokens
	ByFraction
	ByBlocks
)

// Latch remembers that a node's blocks have exceeded their threshold. The latch is set when the
// used or the active blocks exceed it, and cleared when both are below. The zero Latch is clear. A
// Latch is safe for concurrent use.
type Latch struct{ set atomic.Bool }

// Busy returns the reason why a node with these figures is busy. Busy brings the node's latch up to
// date, and allocates nothing.
func (t *Thresholds) Busy(f *Figures, l *Latch) Reason {
	latched := t.latched(f, l)
	if latched != l.set.Load() {
		l.set.Store(latched)
	}
	return t.reason(f, latched)
}

// Look is Busy without a change of the latch.
func (t *Thresholds) Look(f *Figures, l *Latch) Reason { return t.reason(f, t.latched(f, l)) }

func (t *Thresholds) reason(f *Figures, latched bool) Reason {
	switch {
	case t.PrefillTokens != nil && f.PrefillTokens > int64(*t.PrefillTokens):
		return ByTokens
	case t.PrefillFraction != nil && f.MaxBatchedTokens > 0 &&
		float64(f.PrefillTokens) > *t.PrefillFraction*float64(f.MaxBatchedTokens):
		return ByFraction
	case latched:
		return ByBlocks
	}
	return Not
}

// latched returns the state of the latch with these figures.
func (t *Thresholds) latched(f *Figures, l *Latch) bool {
	if t.DecodeBlocks == nil || !(f.TotalBlocks > 0) {
		return false
	}
	switch most, limit := max(f.UsedBlocks, f.ActiveBlocks), *t.DecodeBlocks*f.TotalBlocks; {
	case most > limit:
		return true
	case most < limit || most <= 0: // with a limit of 0, a node without blocks in use counts as below it
		return false
	}
	return l.set.Load()
}

// Why describes for people the reason why a node with these figures is busy.
func (t *Thresholds) Why(r Reason, f *Figures) string {
	switch r {
	case ByTokens:
		return fmt.Sprintf("busy: %d prompt tokens wait for prefill, active_prefill_tokens_threshold is %d",
			f.PrefillTokens, *t.PrefillTokens)
	case ByFraction:
		return fmt.Sprintf("busy: %d prompt tokens wait for prefill, active_prefill_tokens_threshold_frac is %g of %d",
			f.PrefillTokens, *t.PrefillFraction, f.MaxBatchedTokens)
	case ByBlocks:
		reported := ""
		if f.Age > 0 && f.UsedBlocks >= f.ActiveBlocks {
			reported = " (reported " + f.Age.Round(100*time.Millisecond).String() + " ago)"
		}
		return fmt.Sprintf("busy: %.3g of its KV blocks are in use%s, active_decode_blocks_threshold is %g",
			max(f.UsedBlocks, f.ActiveBlocks)/f.TotalBlocks, reported, *t.DecodeBlocks)
	}
	return "it was busy a moment ago"
}
