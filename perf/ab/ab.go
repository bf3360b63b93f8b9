// Package ab compares two ways of routing on real engines. Each round plays the same trace once
// with each of them, with empty caches, and the rounds alternate in which is first.
//
// The figures are those of package replay: from the client's side, over HTTP, with streams. Values
// of one round form a pair, because the engines and the machine are most alike within a round. The
// interval of a ratio is over the pairs.
package ab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
)

// Side is one of the two ways of routing.
type Side struct {
	Name string
	// Start returns the router for one run.
	Start func(ctx context.Context) (*Site, error)
}

// Site is a running router.
type Site struct {
	URL   string
	Nodes []Node // nil: not known
	Stop  func() error
}

// Node is an engine behind a router.
type Node struct{ ID, Address string }

// Config of Run.
type Config struct {
	Sides    [2]Side
	Requests []trace.Request
	Rounds   int
	Warmup   int // requests that are played before the first round, and do not count
	Reset    Reset
	Salt     uint64 // makes the texts or cache salts of this comparison its own; not 0
	// Replay has the model, the key, and how the trace is played. The other fields are not used.
	Replay   replay.Config
	Progress io.Writer // gets a line for each run
}

// Span returns the time from the first request of a run to the last.
func (c *Config) Span() time.Duration {
	if len(c.Requests) == 0 {
		return 0
	}
	ms := c.Requests[len(c.Requests)-1].Timestamp - c.Requests[0].Timestamp
	return time.Duration(float64(ms) / c.Replay.Speed * float64(time.Millisecond))
}

// runner plays the runs.
type runner struct {
	Config
	runs int // begun so far; each has a salt of its own
}

// Run plays all rounds. After an error the report has the complete rounds, or is nil if there are
// none.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	r := &runner{Config: cfg}
	rounds := "rounds"
	if r.Rounds == 1 {
		rounds = "round"
	}
	fmt.Fprintf(r.Progress, "%d %s of two runs, each with %d requests in %s: some %s in all\n", r.Rounds, rounds,
		len(r.Requests), short(r.Span()), short(time.Duration(2*r.Rounds)*(r.Span()+5*time.Second)))
	err := r.warm(ctx)
	var done [][2]*replay.Result
	for round := 0; round < r.Rounds && err == nil; round++ {
		var pair [2]*replay.Result
		if pair, err = r.round(ctx, round); err == nil {
			done = append(done, pair)
		}
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if len(done) == 0 {
		return nil, err
	}
	return r.report(done), err
}

// short formats a time without the digits that do not matter.
func short(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// warm plays the first requests with each side, so that engines that compile or allocate at their
// first requests do so before the first round.
func (r *runner) warm(ctx context.Context) error {
	if r.Warmup == 0 {
		return nil
	}
	all := r.Requests
	defer func() { r.Requests = all }()
	r.Requests = all[:min(r.Warmup, len(all))]
	for i := range r.Sides {
		if _, err := r.run(ctx, i, "warm-up"); err != nil {
			return err
		}
	}
	return nil
}

// round plays the trace with both sides.
func (r *runner) round(ctx context.Context, round int) (pair [2]*replay.Result, err error) {
	for _, side := range [2]int{round % 2, 1 - round%2} {
		if pair[side], err = r.run(ctx, side, fmt.Sprintf("round %d of %d", round+1, r.Rounds)); err != nil {
			return pair, err
		}
	}
	return pair, nil
}

// run plays the trace with one side. what names the run.
func (r *runner) run(ctx context.Context, side int, what string) (result *replay.Result, err error) {
	s := &r.Sides[side]
	what += ", " + s.Name
	site, err := s.Start(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer func() {
		if stopErr := site.Stop(); err == nil && stopErr != nil {
			err = fmt.Errorf("%s: %w", what, stopErr)
		}
	}()
	if err := r.chooseModel(ctx, site); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	cfg := r.Replay
	cfg.URL = site.URL
	if err := r.empty(ctx, &cfg, site); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	cfg.Source = &list{r.Requests}
	runtime.GC() // so that no run pays for the garbage of the one before
	result, err = replay.Run(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if result.Failed() == result.Requests {
		return nil, fmt.Errorf("%s: every request failed: %v; the first: %s", what, result.Failures, result.Sample)
	}
	fmt.Fprintf(r.Progress, "%s: %d requests in %s, %d failed, TTFT p50 %.0f ms, hit ratio %s\n", what,
		result.Requests, short(time.Duration(result.Wall*float64(time.Second))), result.Failed(),
		1000*result.TTFT.P50, text(hitRatio(result)))
	return result, nil
}

// listWithin bounds the wait for a router's list of models, unless a request's own time is shorter.
const listWithin = 30 * time.Second

// chooseModel takes the first model that a router lists, or checks that it lists the wanted one.
func (r *runner) chooseModel(ctx context.Context, site *Site) error {
	ctx, cancel := context.WithTimeout(ctx, min(listWithin, cmp.Or(r.Replay.Timeout, listWithin)))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, site.URL+"/v1/models", nil)
	if err != nil {
		return err
	}
	status, page, err := send(req, r.Replay.APIKey)
	if err != nil {
		return fmt.Errorf("no router answers at %s: %w", site.URL, err)
	}
	var models struct{ Data []struct{ ID string } }
	if status != http.StatusOK || json.Unmarshal(page, &models) != nil || len(models.Data) == 0 {
		return fmt.Errorf("%s/v1/models lists no model: status %d: %.200s", site.URL, status, page)
	}
	var names []string
	for _, m := range models.Data {
		names = append(names, m.ID)
	}
	if r.Replay.Model == "" {
		r.Replay.Model = names[0]
	}
	if !slices.Contains(names, r.Replay.Model) {
		return fmt.Errorf("model %q is not served; %s/v1/models lists %s", r.Replay.Model, site.URL,
			strings.Join(names[:min(len(names), 20)], ", "))
	}
	return nil
}

// list is a trace in memory.
type list struct{ left []trace.Request }

// Next returns the next request, or io.EOF.
func (l *list) Next() (trace.Request, error) {
	if len(l.left) == 0 {
		return trace.Request{}, io.EOF
	}
	q := l.left[0]
	l.left = l.left[1:]
	return q, nil
}
