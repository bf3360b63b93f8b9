package cluster

import (
	"cmp"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Burst describes requests that begin with the same prompt while all caches are cold.
type Burst struct {
	Requests int           // default 200
	Over     time.Duration // time from the first to the last arrival, evenly spaced; 0: all at once
}

// Tokens of a burst.
const (
	burstShared = 6000 // at the beginning of all prompts
	burstTail   = 100  // further ones of each prompt
	burstAnswer = 100
)

// Workload returns the requests of the burst. Engines share only whole blocks of 512 tokens.
func (b Burst) Workload() *Workload {
	b.Requests = cmp.Or(b.Requests, 200)
	shared := make([]int64, burstShared/trace.BlockTokens)
	for i := range shared {
		shared[i] = int64(i)
	}
	w, seen := &Workload{}, map[uint64]bool{}
	for i := range b.Requests {
		q := trace.Request{InputLength: burstShared + burstTail, OutputLength: burstAnswer, HashIDs: shared}
		q.Timestamp = (b.Over.Milliseconds() * int64(i)) / int64(max(b.Requests-1, 1))
		w.add(&q, false, seen)
	}
	w.distinct = len(seen)
	return w
}
