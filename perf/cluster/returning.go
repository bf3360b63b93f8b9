package cluster

import (
	"io"
	"math/rand/v2"

	"github.com/cognitora/dataplane/perf/trace"
)

// returning makes requests that come back to documents. Each request has one of a fixed number of
// documents, all equally likely, and a short question behind it.
type returning struct {
	dice   *rand.Rand
	sizes  []int // full blocks of the documents
	left   int
	at     float64 // ms of the next arrival
	gap    float64 // mean ms between arrivals
	nextID int64
}

const (
	returningBlocks   = 16  // mean length of a document in blocks, of 8192 tokens in all
	returningQuestion = 150 // mean tokens
	returningAnswer   = 200
)

// newReturning makes requests about documents that take this number of blocks together.
func newReturning(blocks int, seed uint64, perSecond float64, requests int) trace.Source {
	r := &returning{dice: rand.New(rand.NewPCG(seed, 5)), left: requests, gap: 1000 / perSecond}
	for blocks > 0 {
		n := min(1+r.dice.IntN(2*returningBlocks-1), blocks)
		r.sizes = append(r.sizes, n)
		blocks -= n
	}
	r.nextID = int64(len(r.sizes)) * 2 * returningBlocks
	return r
}

// Next returns the next request.
func (r *returning) Next() (trace.Request, error) {
	if r.left == 0 {
		return trace.Request{}, io.EOF
	}
	r.left--
	of := r.dice.IntN(len(r.sizes))
	question := 1 + r.dice.IntN(2*returningQuestion)
	q := trace.Request{
		Timestamp: int64(r.at), InputLength: r.sizes[of]*trace.BlockTokens + question,
		OutputLength: 1 + r.dice.IntN(2*returningAnswer), SystemBlocks: 0,
	}
	for i := range r.sizes[of] {
		q.HashIDs = append(q.HashIDs, int64(of*2*returningBlocks+i))
	}
	q.HashIDs = append(q.HashIDs, r.nextID)
	r.nextID++
	r.at += r.gap * r.dice.ExpFloat64()
	return q, nil
}
