// Package replay replays a trace against an OpenAI endpoint. The replay is an open loop of
// streaming chat requests at the trace's own spacing, divided by a factor.
//
// Times count from the moment at which a request was due, not from when it was sent. So a system
// that stalls cannot hide that from the measurement (coordinated omission). Requests are not
// retried.
package replay

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Config says what to replay, and where.
type Config struct {
	// URL is the URL of the endpoint without /v1.
	URL string
	// Model is the model's name. APIKey is set if the endpoint requires one.
	Model  string
	APIKey string
	// Source is the trace. Text expands the trace to prompts.
	Source trace.Source
	Text   trace.Text
	// Body makes the body of a request in place of Model, Text, CacheSalt, IgnoreEOS and
	// MaxOutputTokens, if set. Several goroutines call Body at once.
	Body func(q *trace.Request) []byte
	// CacheSalt is sent as cache_salt, by which vLLM keeps the cached blocks of requests apart.
	// Empty: none.
	CacheSalt string
	// IgnoreEOS asks for answers as long as in the trace, by a member that vLLM, SGLang and
	// llama.cpp know.
	IgnoreEOS bool
	// Node is sent as x-cgn-node, by which a router sends all requests to this node. Empty: any
	// node.
	Node string
	// Turns bounds the number of requests. 0 means the whole trace.
	Turns int
	// Speed divides the time between requests. Default 1.
	Speed float64
	// MaxOutputTokens caps the answers. 0 means as long as in the trace.
	MaxOutputTokens int
	// Timeout is the time limit of one request. Default 10 min.
	Timeout time.Duration
	// MaxInFlight bounds the requests in flight. A request that is due above the bound is not sent
	// and counts as failed. Default 4096.
	MaxInFlight int
}

func (c Config) withDefaults() Config {
	c.Speed, c.Timeout = cmp.Or(c.Speed, 1), cmp.Or(c.Timeout, 10*time.Minute)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 4096)
	c.Source = trace.Limit(c.Source, c.Turns)
	return c
}

// run is a running replay.
type run struct {
	cfg     Config
	client  *http.Client
	slots   chan struct{} // one element per request in flight
	started time.Time
	flights sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

// sample is the result of one request. Times are since the start of the run.
type sample struct {
	due, sent, first, end time.Duration
	last                  time.Duration // the last event with a token
	tokens                int64         // events with a token
	failure               string        // empty for a complete answer
	answer                string        // the beginning of an error's body
	node                  string        // x-cgn-node in the answer
	prompt, cached, out   int64         // tokens, from the engine's usage
	counted               bool          // the usage had a count of cached tokens
}

// Run replays the trace and waits for every sent request. When ctx ends, no further request is sent
// and those in flight are cancelled. The Result then covers the requests so far, and the error is
// ctx's. If the trace ends with an error, the run ends in the same way, but without cancelling.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	cfg = cfg.withDefaults()
	transport := &http.Transport{
		MaxIdleConnsPerHost: cfg.MaxInFlight, MaxIdleConns: cfg.MaxInFlight,
		DisableCompression: true, ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
	}
	defer transport.CloseIdleConnections()
	r := &run{
		cfg: cfg, client: &http.Client{Transport: transport},
		slots: make(chan struct{}, cfg.MaxInFlight), started: time.Now(),
	}
	err := r.dispatch(ctx)
	r.flights.Wait()
	return summarise(r.samples, time.Since(r.started)), err
}

// dispatch sends each request when it is due.
func (r *run) dispatch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	begin := int64(-1)
	for q, err := range trace.All(r.cfg.Source) {
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if begin < 0 {
			begin = q.Timestamp
		}
		due := time.Duration(float64(q.Timestamp-begin) / r.cfg.Speed * float64(time.Millisecond))
		timer.Reset(due - time.Since(r.started))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		r.send(ctx, &q, due)
	}
	return nil
}

// send starts one request, or counts it as failed if too many are in flight.
func (r *run) send(ctx context.Context, q *trace.Request, due time.Duration) {
	select {
	case r.slots <- struct{}{}:
	default:
		r.keep(sample{due: due, sent: due, end: due, failure: "not sent: too many in flight"})
		return
	}
	r.flights.Go(func() {
		defer func() { <-r.slots }()
		r.keep(r.ask(ctx, q, due))
	})
}

func (r *run) keep(s sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
}

// since returns the time since the start of the run.
func (r *run) since() time.Duration { return time.Since(r.started) }
