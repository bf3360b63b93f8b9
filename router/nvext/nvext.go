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

	"github.com/cognitora/dataplane/router/policy"
)

// Ext holds the routing extensions of one request that have an effect. The zero Ext asks for
// nothing.
type Ext struct {
	Worker    Worker  // the only worker that may answer
	Allowed   Workers // the workers that may answer; nil: all
	AllowedBy string  // the field or header that gave Allowed

	DPRank   policy.Optional[uint32] // data-parallel rank of the worker
	DPRankBy string                  // the field or header that chose DPRank

	Prefill Prefill // the worker that computes the prompt for another one

	RequiredTaints  []string
	PreferredTaints []Taint

	Priority  uint32 // as asked for; the client's key caps it
	Last      bool   // the request comes after all others, whatever its Priority
	OSL       uint32 // expected output length in tokens; 0: unknown
	Overrides policy.Overrides
	MoE       MoEQuery
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

// Prefill is a client's choice of the worker that computes the prompt.
type Prefill struct {
	Worker Worker
	Rank   policy.Optional[uint32] // its data-parallel rank
	RankBy string                  // the field or header that chose Rank
}

// Taint is a label of nodes that a request prefers, or avoids if the weight is negative.
type Taint struct {
	Name   string
	Weight float64
}

// MoEQuery names the experts of a mixture-of-experts model that a request needs.
type MoEQuery struct {
	Experts []string // each once; nil: no query
	// FallbackToUnlabeled allows nodes that do not state all of the experts.
	FallbackToUnlabeled bool
}

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
