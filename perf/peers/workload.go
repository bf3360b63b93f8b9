package peers

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Workload is what one run sends.
type Workload struct {
	requests []trace.Request
	// perSecond is the mean rate at the requests' own spacing.
	perSecond float64
	body      func(q *trace.Request) []byte
}

// source yields requests in memory.
type source []trace.Request

// Next returns the next request.
func (s *source) Next() (trace.Request, error) {
	if len(*s) == 0 {
		return trace.Request{}, io.EOF
	}
	q := (*s)[0]
	*s = (*s)[1:]
	return q, nil
}

// maxTrace is the longest trace. A request takes about 1 KB.
const maxTrace = 1_000_000

// windows returns n disjoint windows of a trace, of size requests each, which begin at equal
// distances. Lengths are divided by scale.
func windows(from trace.Source, n, size, scale int) ([]*Workload, error) {
	var all []trace.Request
	for q, err := range trace.All(from) {
		if err != nil {
			return nil, err
		}
		if len(all) == maxTrace {
			return nil, fmt.Errorf("the trace is longer than %d requests", maxTrace)
		}
		all = append(all, q)
	}
	if len(all) < n*size {
		return nil, fmt.Errorf("the trace has %d requests, %d windows of %d need %d: lower --requests or --windows",
			len(all), n, size, n*size)
	}
	var found []*Workload
	for i := range n {
		first := i * (len(all) / n)
		w := &Workload{requests: all[first : first+size], body: scaled(scale)}
		span := time.Duration(w.requests[size-1].Timestamp-w.requests[0].Timestamp) * time.Millisecond
		if span <= 0 {
			return nil, fmt.Errorf("the requests of window %d, from request %d on, all come at one time: raise --requests",
				i+1, first)
		}
		w.perSecond = float64(size) / span.Seconds()
		found = append(found, w)
	}
	return found, nil
}

// scaled returns a function that makes the bodies of a trace's requests. The text of a hash id is
// the same everywhere, and has BlockTokens/scale tokens.
func scaled(scale int) func(q *trace.Request) []byte {
	return func(q *trace.Request) []byte {
		block := trace.BlockTokens / scale
		last := max((q.InputLength-trace.BlockTokens*(len(q.HashIDs)-1))/scale, 1)
		b := newBody(q.InputLength / scale)
		b.open("user")
		for i, id := range q.HashIDs {
			n := block
			if i == len(q.HashIDs)-1 {
				n = min(block, last)
			}
			b.words(n, uint64(id), 0)
		}
		return b.close(max(q.OutputLength/scale, 1))
	}
}

// The burst is burstRequests requests in burstTime on one system prompt of burstShared tokens.
const (
	burstRequests = 200
	burstTime     = 2 * time.Second
	burstShared   = 6000
	burstOwn      = 200
	burstOutput   = 20
)

// burst returns the burst. Bursts with different numbers have no text in common.
func burst(number int) *Workload {
	w := &Workload{perSecond: burstRequests / burstTime.Seconds()}
	for i := range burstRequests {
		w.requests = append(w.requests, trace.Request{
			Timestamp: burstTime.Milliseconds() * int64(i) / burstRequests, InputLength: burstShared + burstOwn,
			OutputLength: burstOutput, HashIDs: []int64{int64(i)}})
	}
	seed := uint64(number) + 1
	w.body = func(q *trace.Request) []byte {
		b := newBody(q.InputLength)
		b.open("system")
		b.words(burstShared, seed, 1)
		b.open("user")
		b.words(burstOwn, uint64(q.HashIDs[0]), seed<<1)
		return b.close(q.OutputLength)
	}
	return w
}

// body is a chat request under construction. Its words need no escapes in JSON.
type body struct {
	text     []byte
	messages int
}

// newBody returns a body with room for a prompt of this length.
func newBody(tokens int) *body {
	b := &body{text: make([]byte, 0, 5*tokens+512)}
	b.text = append(b.text, `{"model":"`+modelName+`","messages":[`...)
	return b
}

// open begins the next message.
func (b *body) open(role string) {
	if b.messages > 0 {
		b.text = append(b.text, `"},`...)
	}
	b.messages++
	b.text = append(b.text, `{"role":"`+role+`","content":"`...)
}

func (b *body) words(n int, seed1, seed2 uint64) { b.text = appendWords(b.text, n, seed1, seed2) }

// close returns the body of a stream of exactly this many tokens.
func (b *body) close(tokens int) []byte {
	b.text = append(b.text, `"}],"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":`...)
	return append(strconv.AppendInt(b.text, int64(tokens), 10), '}')
}

// checkScale returns an error if blocks cannot be divided by scale.
func checkScale(scale int) error {
	if scale < 1 || trace.BlockTokens%scale != 0 {
		return errors.New("--scale: must divide 512")
	}
	return nil
}
