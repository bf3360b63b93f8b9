package fleet

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/health"
)

// asker talks to one node between its checks. asker asks a static node for its models and load.
// asker opens connections to any node that is well again. asker is the health.Subject of its node.
type asker struct {
	fleet *Fleet
	node  *Node
	found atomic.Pointer[discovery]
	// relist asks for the models before their time.
	relist atomic.Bool

	// The goroutine that checks the node owns these fields.
	modelsAt  time.Time
	metricsAt time.Time // earliest time of the next read
	startTime float64   // of the engine's process, Unix seconds; 0 = unknown
	warm      bool      // connections were opened since the node was last unwell
}

func newAsker(f *Fleet, n *Node) *asker {
	a := &asker{fleet: f, node: n}
	a.found.Store(&discovery{})
	return a
}

func (a *asker) discovered() discovery { return *a.found.Load() }

// Moved logs the breaker's new state.
func (a *asker) Moved(from, to health.State, why string) { a.fleet.breakerMoved(a.node, from, to, why) }

// InFlight returns the number of this router's requests on the node.
func (a *asker) InFlight() int32 { return a.node.InFlight() }

// Model returns the engine's name of the node's first model.
func (a *asker) Model() (name string, known bool) {
	models := a.node.Info().Models
	if len(models) == 0 {
		return "", false
	}
	return a.node.UpstreamModel(models[0]), true
}

// Renewed makes the next check ask for the models and open connections again.
func (a *asker) Renewed() { a.modelsAt, a.warm = time.Time{}, false }

// Answers asks a static node for its models. Only a node that answers counts as healthy.
func (a *asker) Answers(ctx context.Context) error {
	if a.node.Source != Static {
		return nil
	}
	return a.discover(ctx)
}

// Checked runs after each check. Checked notices an engine that has restarted. Checked opens
// connections to a node that is new or was unwell. Checked ignores a failure, because the next
// request or check meets the same failure.
func (a *asker) Checked(ctx context.Context, well, restarted bool) {
	if restarted {
		a.restarted(ctx)
	}
	if a.warm && well && a.node.Health.State() != health.Open {
		return
	}
	if a.warm = well; well && a.keepsIdle() {
		_, _ = a.node.Pool.Warm(ctx, a.fleet.o.Warm)
	}
}

// keepsIdle reports whether the node is known to tolerate idle connections. Agents, vLLM and SGLang
// do. Idle connections would block a server with one thread, or with one thread a connection.
func (a *asker) keepsIdle() bool {
	engine := a.discovered().engine
	return a.node.Source == Etcd || engine == "vllm" || engine == "sglang"
}

// Sample reads a static node's metrics when they are due.
func (a *asker) Sample(ctx context.Context) {
	if a.node.Source == Static {
		a.scrape(ctx)
	}
}

// Pause returns the time until a static node's metrics are due.
func (a *asker) Pause(limit time.Duration) time.Duration {
	if a.node.Source != Static {
		return limit
	}
	return min(limit, max(time.Until(a.metricsAt), a.fleet.o.ScrapeInterval/2))
}
