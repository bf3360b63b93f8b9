package cluster

import (
	"cmp"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Burst describes requests that begin with the same prompt while all caches are cold. The zero
// value of a field means its default.
type Burst struct {
	Requests int           // default 200
	Shared   int           // common tokens at the beginning of all prompts; default 6000
	Tail     int           // further tokens of each prompt; default 100
	Answer   int           // tokens of an answer; default 100
	Over     time.Duration // time from the first to the last arrival, evenly spaced; 0: all at once
}

// Workload returns the requests of the burst. Engines share only whole blocks of 512 tokens.
func (b Burst) Workload() *Workload {
	b.Requests, b.Shared = cmp.Or(b.Requests, 200), cmp.Or(b.Shared, 6000)
	b.Tail, b.Answer = cmp.Or(b.Tail, 100), cmp.Or(b.Answer, 100)
	shared := make([]int64, b.Shared/trace.BlockTokens)
	for i := range shared {
		shared[i] = int64(i)
	}
	w, seen := &Workload{}, map[uint64]bool{}
	for i := range b.Requests {
		q := trace.Request{InputLength: b.Shared + b.Tail, OutputLength: b.Answer, HashIDs: shared}
		q.Timestamp = (b.Over.Milliseconds() * int64(i)) / int64(max(b.Requests-1, 1))
		w.add(&q, false, seen)
	}
	w.distinct = len(seen)
	return w
}
