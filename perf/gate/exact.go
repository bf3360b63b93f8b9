package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/load"
	"github.com/cognitora/dataplane/perf/process"
)

// These are names of contestants.
const (
	ours      = "ours"
	unsampled = "ours, unsampled" // with a collector for traces, but no request is recorded
	withKeys  = "ours, with keys" // whose requests need an API key
	oursTLS   = "ours, TLS clients"
)

// Amounts of counted work. Requests and tokens come one after the other, so that the machine does
// not decide how many coincide.
const (
	countedTokens = 20000
	chatBytes     = 2 << 10         // of a prompt
	rest          = 2 * time.Second // how long the idle router is watched
)

// work is counted work of the router.
type work struct {
	by          string // the contestant
	do          func(s *site, r *compare.Running, units int) error
	warm, units int // requests or tokens before and during the counting
}

var (
	shortRequests = work{ours, requests(chatBytes), 2000, 20000}
	// many requests share the allocations that follow when the collector empties pools
	longRequests = work{ours, requests(220 << 10), 600, 6000}
	tokens       = work{ours, (*site).tokens, countedTokens / 20, countedTokens}

	unsampledRequests = work{unsampled, requests(chatBytes), 2000, 20000}
	keyedRequests     = work{withKeys, requests(chatBytes), 2000, 20000}
)

// begin returns the router after the work that warms it.
func (w work) begin(ctx context.Context, s *site) (*compare.Running, error) {
	r, err := s.start(ctx, w.by)
	if err == nil {
		err = w.do(s, r, w.warm)
	}
	return r, err
}

// requests sends requests with prompts of this size, one after the other.
func requests(promptBytes int) func(*site, *compare.Running, int) error {
	return func(s *site, r *compare.Running, n int) error {
		bodies := load.NewChat(load.ChatConfig{Model: instant.Model, PromptBytes: promptBytes, Shared: 0.5, Tokens: 16,
			Salt: uint64(time.Now().UnixNano())})
		result, _ := load.Closed{Target: r.Target(), Bodies: bodies, Clients: 1,
			Requests: uint64(n), Window: s.window()}.Run()
		if result.Requests != int64(n) || result.Failed() > 0 {
			return fmt.Errorf("%d of %d requests were answered in a minute: %v", result.Requests, n, result.Failures)
		}
		return nil
	}
}

// window returns a window that is long enough for the counted work, and that ends when the gates
// are interrupted.
func (s *site) window() load.Window { return load.Window{Measure: time.Minute, Stop: s.interrupted} }

// tokens relays one stream of n tokens. The engine sends each token when the previous one has
// arrived.
func (s *site) tokens(r *compare.Running, n int) error {
	bodies := load.NewChat(load.ChatConfig{Model: instant.Model, PromptBytes: chatBytes, Shared: 0.5, Stream: true,
		Tokens: n, Wish: "step=1", Salt: uint64(time.Now().UnixNano())})
	s.Step() // releases the first token
	result := load.Streams{Target: r.Target(), Bodies: bodies, N: 1, Window: s.window(),
		OnToken: s.Step}.Run()
	if result.Requests != 1 || result.Failed() > 0 {
		return fmt.Errorf("a stream of %d tokens: %v", n, result.Failures)
	}
	return nil
}

// perUnit returns the growth of counter per unit of work. perUnit subtracts the growth at rest in
// the same time, and the growth by reading the counter.
func (s *site) perUnit(counter func() (float64, error), work func() error, units int) (float64, error) {
	var read [4]float64 // two readings in a row, one after a rest, one after the work
	var took [2]time.Duration
	nothing := func() error { return nil }
	idle := func() error {
		select {
		case <-time.After(rest):
		case <-s.interrupted:
		}
		return nil
	}
	for i, step := range []func() error{nothing, nothing, idle, work} {
		begun := time.Now()
		if err := step(); err != nil {
			return 0, err
		}
		if i >= 2 {
			took[i-2] = time.Since(begun)
		}
		var err error
		if read[i], err = counter(); err != nil {
			return 0, err
		}
	}
	reading := read[1] - read[0]
	resting := (read[2] - read[1] - reading) / took[0].Seconds()
	return (read[3] - read[2] - reading - resting*took[1].Seconds()) / float64(units), nil
}

// allocations is a gauge of the objects that the router allocates for a unit of w.
func (w work) allocations(ctx context.Context, s *site) (float64, string, error) {
	r, err := w.begin(ctx, s)
	if err != nil {
		return 0, "", err
	}
	v, err := s.perUnit(func() (float64, error) {
		c, err := r.Counts()
		return c.Objects, err
	}, func() error { return w.do(s, r, w.units) }, w.units)
	return v, "the sites: go tool pprof -sample_index=alloc_objects http://ADMIN/debug/pprof/heap", err
}

// calls returns a gauge of the router's system calls for a unit of w. pick selects the system calls
// that count.
func (w work) calls(pick func(s *site, c process.Calls) int64) gauge {
	return func(ctx context.Context, s *site) (float64, string, error) {
		r, err := w.begin(ctx, s)
		if err != nil {
			return 0, "", err
		}
		counting, err := process.CountCalls(r.PID())
		if err != nil {
			return 0, "", fmt.Errorf("%w: %w", errUnmeasured, err)
		}
		err = w.do(s, r, w.units)
		c, stopErr := counting.Stop()
		return float64(pick(s, c)) / float64(w.units), c.PerUnit(int64(w.units)), errors.Join(err, stopErr)
	}
}

func useful(s *site, c process.Calls) int64 { return c.Useful(s.SchedulerCalls...) }

func empty(_ *site, c process.Calls) int64 { return c[process.Again] }

// waits counts how often the router asks the kernel for ready connections. A router that waits for
// each token asks once for each token.
func waits(_ *site, c process.Calls) int64 {
	return c["epoll_pwait"] + c["epoll_pwait2"] + c["epoll_wait"]
}
