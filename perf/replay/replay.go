// Package replay plays a trace against an OpenAI endpoint: an open loop of
// streaming chat requests at the trace's own spacing, sped up by a factor, and
// what came of them.
//
// Times count from the moment at which a request was due, not from when it was
// sent, so a system that stalls cannot hide that from the measurement
// (coordinated omission). Nothing is sent again.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Config says what to play, and against what.
type Config struct {
	// URL of the endpoint, without /v1.
	URL string
	// Model and, where the endpoint asks for one, APIKey.
	Model  string
	APIKey string
	// Source is the trace; Text how it is expanded to prompts.
	Source trace.Source
	Text   trace.Text
	// Turns bounds the number of requests. 0 means the whole trace.
	Turns int
	// Speed divides the time between requests. Default 1.
	Speed float64
	// MaxOutputTokens caps the answers. 0 means as long as in the trace.
	MaxOutputTokens int
	// Timeout of one request. Default 10 min.
	Timeout time.Duration
	// MaxInFlight bounds the requests under way: one that is due beyond it is
	// not sent and counts as failed. Default 4096.
	MaxInFlight int
}

func (c Config) withDefaults() Config {
	if c.Speed <= 0 {
		c.Speed = 1
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Minute
	}
	if c.MaxInFlight <= 0 {
		c.MaxInFlight = 4096
	}
	if c.Turns > 0 {
		c.Source = trace.Limit(c.Source, c.Turns)
	}
	return c
}

// run is a replay under way.
type run struct {
	cfg     Config
	client  *http.Client
	slots   chan struct{} // one element per request under way
	started time.Time
	flights sync.WaitGroup

	mu      sync.Mutex
	samples []sample
	late    time.Duration // the most that a request was sent after it was due
}

// sample is what came of one request; times are since the start of the run.
type sample struct {
	due, sent, first, end time.Duration
	failure               string // empty for an answer that came whole
	node                  string // x-cgn-node of the answer
	prompt, cached, out   int64  // tokens by the engine's usage
	counted               bool   // the usage had a cached count
}

// Run plays the trace and waits for every request that it sent. When ctx ends no
// further request is sent and those under way are cancelled; the Result then
// covers what there was, and the error is ctx's. A trace that breaks off with an
// error ends the run the same way, without cancelling.
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
	return summarise(r.samples, r.late, time.Since(r.started)), err
}

// dispatch sends each request when it is due.
func (r *run) dispatch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var begin int64
	for n := 0; ; n++ {
		q, err := r.cfg.Source.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if n == 0 {
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
}

// send starts one request, or counts it as failed when too many are under way.
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
	r.late = max(r.late, s.sent-s.due)
}

// since is the time since the start of the run.
func (r *run) since() time.Duration { return time.Since(r.started) }
