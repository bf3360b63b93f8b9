package gate

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/load"
	"github.com/cognitora/dataplane/perf/process"
)

const ours = "ours"

// Amounts of counted work. Requests and tokens come one after the other, so that the machine does
// not decide how many coincide.
const (
	countedRequests = 20000
	countedTokens   = 20000
	warmRequests    = 2000
	longRequests    = 6000 // many, because the allocations after the collector empties pools are divided by them
	warmLong        = 600
	rest            = 2 * time.Second // how long the idle router is watched
)

// Sizes of the prompts of counted requests, in bytes.
const (
	chatBytes = 2 << 10
	longBytes = 220 << 10
)

// requests sends n requests, one after the other.
func (s *site) requests(r *compare.Running, promptBytes int, n uint64) error {
	bodies := load.NewChat(load.ChatConfig{Model: instant.Model, PromptBytes: promptBytes, Shared: 0.5, Tokens: 16,
		Salt: uint64(time.Now().UnixNano())})
	result, _ := load.Closed{Target: load.Target{Address: r.Addr()}, Bodies: bodies, Clients: 1, Requests: n,
		Window: s.window()}.Run()
	if result.Requests != int64(n) || result.Failed() > 0 {
		return fmt.Errorf("%d of %d requests were answered in a minute: %v", result.Requests, n, result.Failures)
	}
	return nil
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
	result := load.Streams{Target: load.Target{Address: r.Addr()}, Bodies: bodies, N: 1, Window: s.window(),
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

// allocations returns how many objects a program has allocated since its start.
func allocations(r *compare.Running) (float64, error) {
	resp, err := http.Get("http://" + r.AdminAddr() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return 0, err
	}
	const name = "go_memstats_mallocs_total"
	f := families[name]
	if f == nil || len(f.GetMetric()) != 1 {
		return 0, fmt.Errorf("the router's /metrics have no %s", name)
	}
	return f.GetMetric()[0].GetCounter().GetValue(), nil
}

// allocationsPerRequest returns a gauge of the allocations in n requests, after warm requests.
func allocationsPerRequest(promptBytes int, warm, n uint64) gauge {
	return func(ctx context.Context, s *site) (float64, string, error) {
		r, err := s.start(ctx, ours)
		if err == nil {
			err = s.requests(r, promptBytes, warm)
		}
		if err != nil {
			return 0, "", err
		}
		v, err := s.perUnit(func() (float64, error) {
			return allocations(r)
		}, func() error { return s.requests(r, promptBytes, n) }, int(n))
		return v, allocationsHint, err
	}
}

const allocationsHint = "the sites: go tool pprof -sample_index=alloc_objects http://ADMIN/debug/pprof/heap"

func allocationsPerToken(ctx context.Context, s *site) (float64, string, error) {
	r, err := s.start(ctx, ours)
	if err == nil {
		err = s.tokens(r, countedTokens/20)
	}
	if err != nil {
		return 0, "", err
	}
	v, err := s.perUnit(func() (float64, error) {
		return allocations(r)
	}, func() error { return s.tokens(r, countedTokens) }, countedTokens)
	return v, allocationsHint, err
}

// calls counts the system calls of work.
func calls(r *compare.Running, work func() error) (process.Calls, error) {
	counting, err := process.CountCalls(r.PID())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnmeasured, err)
	}
	err = work()
	counted, stopErr := counting.Stop()
	if err == nil {
		err = stopErr
	}
	return counted, err
}

func callsPerRequest(ctx context.Context, s *site) (float64, string, error) {
	c, err := s.requestCalls(ctx)
	return float64(c.Useful(s.SchedulerCalls...)) / countedRequests, c.PerUnit(countedRequests), err
}

func emptyPerRequest(ctx context.Context, s *site) (float64, string, error) {
	c, err := s.requestCalls(ctx)
	return float64(c[process.Again]) / countedRequests, c.PerUnit(countedRequests), err
}

func callsPerToken(ctx context.Context, s *site) (float64, string, error) {
	c, err := s.tokenCalls(ctx)
	return float64(c.Useful(s.SchedulerCalls...)) / countedTokens, c.PerUnit(countedTokens), err
}

func emptyPerToken(ctx context.Context, s *site) (float64, string, error) {
	c, err := s.tokenCalls(ctx)
	return float64(c[process.Again]) / countedTokens, c.PerUnit(countedTokens), err
}

// waitsPerToken counts how often the router asks the kernel for ready connections. A router that
// waits for each token asks once for each token.
func waitsPerToken(ctx context.Context, s *site) (float64, string, error) {
	c, err := s.tokenCalls(ctx)
	return float64(c["epoll_pwait"]+c["epoll_pwait2"]+c["epoll_wait"]) / countedTokens, c.PerUnit(countedTokens), err
}

func (s *site) requestCalls(ctx context.Context) (process.Calls, error) {
	r, err := s.start(ctx, ours)
	if err == nil {
		err = s.requests(r, chatBytes, warmRequests)
	}
	if err != nil {
		return nil, err
	}
	return calls(r, func() error { return s.requests(r, chatBytes, countedRequests) })
}

func (s *site) tokenCalls(ctx context.Context) (process.Calls, error) {
	r, err := s.start(ctx, ours)
	if err == nil {
		err = s.tokens(r, countedTokens/20)
	}
	if err != nil {
		return nil, err
	}
	return calls(r, func() error { return s.tokens(r, countedTokens) })
}
