package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/sim/engine"
)

// Workload is a trace in memory. A block is identified together with all blocks before it.
type Workload struct {
	requests []request
	distinct int // full blocks of 512 tokens
	tokens   int // of all prompts
}

// request is one line of the trace.
type request struct {
	at             time.Duration // time since the first request
	prompt, answer int           // in tokens, at least 1 each
	chain          []uint64      // one key for each full block of 512 tokens; a key covers all earlier blocks
	serial         uint64        // number of the request, for keys of blocks that no other request shares
	maxTokens      int           // the client's bound on the answer; 0: none
	session        []byte        // id of the session; nil: the client gives none
	number         int64         // number of the session; 0: unknown
}

// maxRequests is the largest workload. A request takes about 1 KB.
const maxRequests = 10_000_000

// Load reads a whole trace. If spread is set, requests that have only the first block in common
// share nothing (see trace.Text).
func Load(source trace.Source, spread bool) (*Workload, error) {
	w := &Workload{}
	seen := map[uint64]bool{}
	for q, err := range trace.All(source) {
		if err != nil {
			return nil, err
		}
		if len(w.requests) == maxRequests {
			return nil, fmt.Errorf("the trace is longer than %d requests", maxRequests)
		}
		w.add(&q, spread, seen)
	}
	if len(w.requests) == 0 {
		return nil, errors.New("the trace is empty")
	}
	first := w.requests[0].at
	for i := range w.requests {
		w.requests[i].at -= first
	}
	w.distinct = len(seen)
	return w, nil
}

func (w *Workload) add(q *trace.Request, spread bool, seen map[uint64]bool) {
	r := request{
		at: time.Duration(q.Timestamp) * time.Millisecond, prompt: q.InputLength, answer: max(q.OutputLength, 1),
		serial: trace.Spread(uint64(len(w.requests)) + 1), number: q.Session,
	}
	full := min(q.InputLength/trace.BlockTokens, len(q.HashIDs))
	r.chain = make([]uint64, 0, full)
	var parent uint64
	if spread && len(q.HashIDs) > 1 {
		parent = trace.Spread(uint64(q.HashIDs[1]) + 1)
	}
	for _, id := range q.HashIDs[:full] {
		parent = trace.Spread(parent ^ trace.Spread(uint64(id)))
		r.chain = append(r.chain, parent)
		seen[parent] = true
	}
	w.tokens += r.prompt
	w.requests = append(w.requests, r)
}

// Len returns the number of requests.
func (w *Workload) Len() int { return len(w.requests) }

// Distinct returns the number of distinct full blocks of 512 tokens.
func (w *Workload) Distinct() int { return w.distinct }

// Tokens returns the number of prompt tokens.
func (w *Workload) Tokens() int { return w.tokens }

// Span returns the time from the first request to the last.
func (w *Workload) Span() time.Duration { return w.requests[len(w.requests)-1].at }

// Longest returns how many blocks of 512 tokens the longest request takes, including an incomplete
// one.
func (w *Workload) Longest() int {
	n := 0
	for i := range w.requests {
		n = max(n, (w.requests[i].prompt+w.requests[i].answer)/trace.BlockTokens+1)
	}
	return n
}

// Reusable returns the share of prompt tokens that one cache without a bound would have found. No
// policy can exceed this share.
func (w *Workload) Reusable() float64 {
	seen := map[uint64]bool{}
	found := 0
	for i := range w.requests {
		r := &w.requests[i]
		n := 0
		for n < len(r.chain) && seen[r.chain[n]] {
			n++
		}
		found += min(n*trace.BlockTokens, (r.prompt-1)/trace.BlockTokens*trace.BlockTokens)
		for _, k := range r.chain[n:] {
			seen[k] = true
		}
	}
	return float64(found) / float64(w.tokens)
}

// indexBlocks is how many of the index's blocks make one block of the trace.
const indexBlocks = trace.BlockTokens / prefix.BlockTokens

// keys appends the keys of the prompt in the index.
func (r *request) keys(dst []uint64) []uint64 {
	n := r.prompt / prefix.BlockTokens
	dst = slices.Grow(dst, n)
	for i := range n {
		of := r.serial
		if b := i / indexBlocks; b < len(r.chain) {
			of = r.chain[b]
		}
		dst = append(dst, trace.Spread(of+uint64(i)))
	}
	return dst
}

// blocks returns the blocks of prompt and answer in the engine's cache.
func (r *request) blocks() []engine.BlockID {
	all := make([]engine.BlockID, (r.prompt+r.answer)/trace.BlockTokens)
	for i := range all {
		key := r.serial + uint64(i)
		if i < len(r.chain) {
			key, all[i][8] = r.chain[i], 1 // never equal to a block that only one request has
		}
		binary.LittleEndian.PutUint64(all[i][:], key)
	}
	return all
}

// Window returns the i-th of n equal parts of the workload, counted from 0, in order of arrival.
func (w *Workload) Window(i, n int) (*Workload, error) {
	if i < 0 || n < 1 || i >= n {
		return nil, fmt.Errorf("window %d of %d: must be one of 0 to %d", i, n, n-1)
	}
	all := len(w.requests)
	part := &Workload{requests: slices.Clone(w.requests[all*i/n : all*(i+1)/n])}
	if len(part.requests) == 0 {
		return nil, fmt.Errorf("window %d of %d: %d requests are too few", i, n, all)
	}
	seen, first := map[uint64]bool{}, part.requests[0].at
	for k := range part.requests {
		r := &part.requests[k]
		r.at -= first
		part.tokens += r.prompt
		for _, key := range r.chain {
			seen[key] = true
		}
	}
	part.distinct = len(seen)
	return part, nil
}
