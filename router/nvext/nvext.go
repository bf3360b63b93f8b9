// Package nvext reads what a client asks of the routing of one request: the member nvext of the
// body, and the headers x-cgn-router-* and x-dynamo-*. The package checks every type and range, and
// refuses unknown keys. docs/nvext.md lists the keys with their effects.
//
// An Ext owns its memory, so nothing in it points into the body. An Ext is small: each list and
// each text has a bound.
package nvext

import (
	"slices"
	"strconv"
)

// Ext holds the routing extensions of one request. The zero Ext asks for nothing.
type Ext struct {
	Worker  Worker  // the only worker that may answer
	Prefill Worker  // the only worker that may compute the prompt, where another one answers
	Allowed Workers // the workers that may answer; nil: all

	AllowedBy string // the field or header that gave Allowed

	DPRank, PrefillDPRank Optional[uint32] // data-parallel ranks of the workers
	DPRankBy              string           // the field or header that chose DPRank

	RequiredTaints  []string
	PreferredTaints []Taint

	Hints     Hints
	Overrides Overrides
	CacheSalt []byte // nil: absent

	// Privileged names the first field or header that only some clients may send; empty: there is
	// none. Package trust says which clients may.
	Privileged string
}

// Worker is a client's choice of one worker.
type Worker struct {
	ID string // a node's name or its number; empty: no choice
	By string // the field or header that made the choice
}

// Taint is a label of nodes that a request prefers, or avoids if the weight is negative.
type Taint struct {
	Name   string
	Weight float64
}

// Hints describe a request, as its client expects it to run.
type Hints struct {
	Priority           Optional[int32]
	StrictPriority     Optional[uint32]
	OSL                uint32 // expected output length in tokens; 0: unknown
	SpeculativePrefill bool
	LatencySensitivity Optional[float64]
}

// Overrides replace settings of the policy for one request. The names are those of the settings.
type Overrides struct {
	OverlapScoreCredit, PrefillLoadScale, RouterTemperature Optional[float64] // 0 or more
	SharedCacheMultiplier                                   Optional[float64] // 0 to 1
	AssumeKVReuse, TrackPrefillTokens                       Optional[bool]
	TTFTTarget, ITLTarget                                   Optional[float64] // milliseconds, above 0

	MoE MoEQuery
}

// MoEQuery names the experts of a mixture-of-experts model that a request needs.
type MoEQuery struct {
	Experts []string // each once; nil: no query
	// FallbackToUnlabeled allows nodes that do not state all of the experts.
	FallbackToUnlabeled bool
}

// Optional is a value that may be absent. The zero Optional is absent.
type Optional[T any] struct {
	Value T
	Given bool
}

// Or returns the value, or absent if there is none.
func (o Optional[T]) Or(absent T) T {
	if o.Given {
		return o.Value
	}
	return absent
}

func given[T any](v T) Optional[T] { return Optional[T]{v, true} }

// Workers is a set of worker ids, sorted. An id is a node's name or its number.
type Workers []string

// Has says whether the set has the node with this name and number. Has allocates nothing.
func (w Workers) Has(name string, number uint64) bool {
	if _, ok := slices.BinarySearch(w, name); ok {
		return true
	}
	var digits [20]byte
	_, ok := slices.BinarySearch(w, string(strconv.AppendUint(digits[:0], number, 10)))
	return ok
}
