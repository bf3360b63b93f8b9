package fleet

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/health"
)

// asker asks a static node, between its checks, what it serves and how busy it is, and opens
// connections to any node that is well again. It is the health.Subject of its node.
type asker struct {
	fleet *Fleet
	node  *Node
	found atomic.Pointer[discovery]

	// Owned by the goroutine that checks the node.
	modelsAt  time.Time
	metricsAt time.Time // not before
	startTime float64   // of the engine's process, Unix seconds; 0 = unknown
	warm      bool      // connections were opened ahead since the node was last found unwell
}

func newAsker(f *Fleet, n *Node) *asker {
	a := &asker{fleet: f, node: n}
	a.found.Store(&discovery{})
	return a
}

func (a *asker) discovered() discovery { return *a.found.Load() }

// Moved logs what the breaker's new state means for requests.
func (a *asker) Moved(from, to health.State, why string) { a.fleet.breakerMoved(a.node, from, to, why) }

// InFlight is the number of this router's requests on the node.
func (a *asker) InFlight() int32 { return a.node.InFlight() }

// Model is the engine's name of the first model of the node.
func (a *asker) Model() (name string, known bool) {
	models := a.node.Info().Models
	if len(models) == 0 {
		return "", false
	}
	return a.node.UpstreamModel(models[0]), true
}

// Renewed has the node asked for its models anew, and connections opened again.
func (a *asker) Renewed() { a.modelsAt, a.warm = time.Time{}, false }

// Answers asks a static node for its models, before it is called well.
func (a *asker) Answers(ctx context.Context) error {
	if a.node.Source != Static {
		return nil
	}
	return a.discover(ctx)
}

// Checked notices an engine that has started anew, and opens connections ahead of the requests to a
// node that was not well before, or is new. A failure is not told: it is the next request's or
// check's to find.
func (a *asker) Checked(ctx context.Context, well, restarted bool) {
	if restarted {
		a.restarted(ctx)
	}
	if a.warm && well && a.node.Health.State() != health.Open {
		return
	}
	if a.warm = well; well && a.keepsIdle() {
		_, _ = a.node.Pool.Warm(ctx, a.fleet.opts.Warm)
	}
}

// keepsIdle reports whether the node is known to bear connections on which nothing is asked:
// agents, vLLM and SGLang do. A server with a thread for each connection, or with one thread, would
// be blocked by them.
func (a *asker) keepsIdle() bool {
	engine := a.discovered().engine
	return a.node.Source == Etcd || engine == "vllm" || engine == "sglang"
}

// Sample reads a static node's metrics where that is due.
func (a *asker) Sample(ctx context.Context) {
	if a.node.Source == Static {
		a.scrape(ctx)
	}
}

// Pause ends when a static node's metrics are due.
func (a *asker) Pause(limit time.Duration) time.Duration {
	if a.node.Source != Static {
		return limit
	}
	return min(limit, max(time.Until(a.metricsAt), a.fleet.opts.ScrapeInterval/2))
}
