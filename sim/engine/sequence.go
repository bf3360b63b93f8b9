package engine

import (
	"sync/atomic"
	"time"
)

// sequence is one answer being generated. The scheduler owns a sequence from submit to its end. The
// waiting request reads only the atomic fields.
type sequence struct {
	output output
	prompt []uint32 // nil if only the prompt's hashes are known
	salt   string
	size   int   // tokens of the prompt
	work   *Work // the Work in a Model

	adapter   string // name of the LoRA adapter; "": the base model
	adapterID int

	lendAs      string // name under which another engine may read the blocks; "": none
	stores      bool   // another engine gets the blocks from the shelf
	lost        bool   // a fault loses the blocks that should be lent
	received    bool   // the prompt's blocks came from another engine
	redone      bool   // a preemption lost those blocks
	cachedThere int    // prompt tokens that were cached there

	hashes   []blockHash // of all full blocks of prompt and answer so far
	held     []*block    // pinned full blocks, a prefix of hashes
	loose    int         // number of blocks that are not full
	total    int         // tokens of prompt and answer so far
	computed int         // leading tokens whose KV is in held and loose
	chunk    int         // tokens computed in the running step

	arrived, admitted, first, last time.Duration // simulated time

	// cached is the number of prompt tokens cached at admission, valid once produced > 0.
	cached   atomic.Int64
	produced atomic.Int64
	aborted  atomic.Bool
	over     atomic.Bool   // the scheduler has dropped the sequence
	wake     chan struct{} // capacity 1, shared by the sequences of a request
}

// newSequence prepares prompt and output for a request that waits on wake. newSequence hashes the
// prompt to save the scheduler that work.
func newSequence(prompt []uint32, o output, blockTokens int, salt string, wake chan struct{}) *sequence {
	return &sequence{
		output: o, prompt: prompt, salt: salt, wake: wake, size: len(prompt), total: len(prompt),
		hashes: hashChain(nil, prompt, blockTokens, salt),
	}
}

// adapt makes q a sequence of a LoRA adapter.
func (q *sequence) adapt(name string, id, blockTokens int) {
	q.adapter, q.adapterID = name, id
	q.hashes = hashChain(nil, q.prompt, blockTokens, q.root())
}

// root returns what the hash of the first block depends on besides tokens.
func (q *sequence) root() string {
	if q.adapter == "" {
		return q.salt
	}
	return q.adapter + "\x00" + q.salt
}

// decodes says whether q's chunk is one step of decoding. The last token of a received prompt is
// such a step.
func (q *sequence) decodes() bool {
	return q.chunk == 1 && (q.computed >= q.size || q.preloaded() && q.computed == q.size-1)
}

// preloaded says whether the scheduler finds the prompt's blocks in place.
func (q *sequence) preloaded() bool { return q.received && !q.redone }

// notify wakes the request. Several pending wake-ups become one.
func (q *sequence) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// tokenAt returns the token at a position of prompt and answer.
func (q *sequence) tokenAt(i int) uint32 {
	if i < len(q.prompt) {
		return q.prompt[i]
	}
	return q.output.token(i - len(q.prompt))
}

// tokens copies the tokens [from, to) of prompt and answer.
func (q *sequence) tokens(from, to int) []uint32 {
	ts := make([]uint32, 0, to-from)
	for i := from; i < to; i++ {
		ts = append(ts, q.tokenAt(i))
	}
	return ts
}
