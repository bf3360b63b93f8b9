// Package busy decides which nodes are too busy for further requests of a model. The thresholds
// are an operator's. A node is busy if the prefill tokens at the node exceed their threshold, or if
// its KV blocks in use do. A figure that is not known makes no node busy.
package busy

import (
	"fmt"
	"sync/atomic"
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
	latched := t.latch(f, l)
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

// latch sets or clears the latch and returns its state.
func (t *Thresholds) latch(f *Figures, l *Latch) bool {
	set := l.set.Load()
	now := set
	switch {
	case t.DecodeBlocks == nil || !(f.TotalBlocks > 0):
		now = false
	default:
		limit := *t.DecodeBlocks * f.TotalBlocks
		if f.UsedBlocks > limit || f.ActiveBlocks > limit {
			now = true
		} else if max(f.UsedBlocks, f.ActiveBlocks) < limit || max(f.UsedBlocks, f.ActiveBlocks) <= 0 {
			now = false // with a limit of 0, a node without blocks in use counts as below it
		}
	}
	if now != set {
		l.set.Store(now)
	}
	return now
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
		return fmt.Sprintf("busy: %.3g of its KV blocks are in use, active_decode_blocks_threshold is %g",
			max(f.UsedBlocks, f.ActiveBlocks)/f.TotalBlocks, *t.DecodeBlocks)
	}
	return "it was busy a moment ago"
}
