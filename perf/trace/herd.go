package trace

import (
	"io"
	"math/rand/v2"
)

// Herd is a trace in which every prompt begins with the same system prompt and
// has nothing else in common with any other: the load under which cache-aware
// routers send everything to one node.
type Herd struct {
	Seed uint64
	// Requests is the number of requests; PerSecond their mean rate.
	Requests  int
	PerSecond float64
	// Blocks is the prompt length in blocks of 512 tokens. Share is the part of
	// it that is the system prompt; it is rounded to whole blocks.
	Blocks int
	Share  float64
	// OutputTokens is the answer length of each request.
	OutputTokens int
}

type herd struct {
	Herd
	r    *rand.Rand
	made int
	at   float64 // ms
}

// Source starts the trace: open-loop arrivals at random.
func (h Herd) Source() Source {
	return &herd{Herd: h, r: rand.New(rand.NewPCG(h.Seed, 2))}
}

// Next returns the next request.
func (h *herd) Next() (Request, error) {
	if h.made == h.Requests {
		return Request{}, io.EOF
	}
	shared := int(h.Share*float64(h.Blocks) + 0.5)
	ids := make([]int64, h.Blocks)
	for i := range ids {
		ids[i] = int64(i)
		if i >= shared {
			ids[i] += int64((h.made + 1) * h.Blocks)
		}
	}
	h.made++
	h.at += 1000 / h.PerSecond * h.r.ExpFloat64()
	return Request{
		Timestamp: int64(h.at), InputLength: h.Blocks * BlockTokens,
		OutputLength: h.OutputTokens, HashIDs: ids, SystemBlocks: shared,
	}, nil
}
