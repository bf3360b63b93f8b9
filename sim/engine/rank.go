package engine

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// rank is one data-parallel rank: a batch and a cache with their counters and KV events. Requests
// choose their rank by RankHeader. The engine chooses the rank of other requests.
type rank struct {
	number int
	sched  *scheduler
	meters *meters
	events *publisher   // nil without KV events
	calls  atomic.Int64 // requests at the rank
}

func newRank(number int, cfg Config, events *publisher, c *core) *rank {
	m := newMeters()
	r := &rank{number: number, meters: m, events: events, sched: newScheduler(cfg, m, events.log())}
	r.sched.loras, r.sched.lender = c.loras, c.lender
	go r.sched.run()
	return r
}

// started returns when the core began.
func (c *core) started() time.Time { return c.ranks[0].meters.started }

// RankHeader names the header by which a request chooses its data-parallel rank.
const RankHeader = "X-Data-Parallel-Rank"

// ignoresRank says whether vLLM chooses the rank itself for requests with this path.
func ignoresRank(path string) bool {
	return !strings.HasPrefix(path, "/v1/chat/") && !strings.HasPrefix(path, "/v1/completions") &&
		!strings.HasPrefix(path, "/v1/messages")
}

// chooseRank sets the rank that computes the request, and counts the request there. Like vLLM,
// chooseRank ignores a header that is no whole number, and otherwise takes the rank with the fewest
// requests.
func (c *call) chooseRank() error {
	all := c.core.ranks
	c.rank = all[0]
	for _, r := range all[1:] {
		if r.calls.Load() < c.rank.calls.Load() {
			c.rank = r
		}
	}
	if n, err := strconv.Atoi(strings.TrimSpace(c.r.Header.Get(RankHeader))); err == nil && !ignoresRank(c.r.URL.Path) {
		if n < 0 || n >= len(all) {
			c.rank = nil
			return badRequest(fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", n, len(all)), "")
		}
		c.rank = all[n]
	}
	c.rank.calls.Add(1)
	return nil
}
