package cluster

import (
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Burst describes requests that begin with the same prompt and find every cache cold. The zero
// value of a field means its default.
type Burst struct {
	Requests int           // default 200
	Shared   int           // tokens that all prompts begin with; default 6000
	Tail     int           // tokens of each prompt's own; default 100
	Answer   int           // tokens; default 100
	Over     time.Duration // from the first arrival to the last, evenly; 0: all at once
}

// Workload makes the requests of the burst. Engines share whole blocks of 512 tokens only.
func (b Burst) Workload() *Workload {
	def(&b.Requests, 200)
	def(&b.Shared, 6000)
	def(&b.Tail, 100)
	def(&b.Answer, 100)
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
