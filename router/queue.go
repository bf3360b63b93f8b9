package router

import (
	"fmt"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/trust"
)

// QueueConfig sets how requests wait for a node with room.
type QueueConfig struct {
	Enabled          bool                `toml:"enabled" default:"false" flag:"queue" help:"let a request wait while every node that could take it is at its max_concurrent, over its busy threshold, at max_queue or over active_tokens; false: such a request gets 503 with Retry-After"`
	MaxRequests      int                 `toml:"max_requests" default:"4096" help:"most waiting requests; beyond it a request gets 503 with Retry-After, or takes the place of one of the tenant that has the most"`
	MaxBytes         config.Size         `toml:"max_bytes" default:"1GiB" help:"most memory of the waiting requests: for each the size of its body, the text of its prompt and 48 KiB; beyond it as beyond max_requests"`
	MaxWait          config.Duration     `toml:"max_wait" default:"30s" help:"longest wait; then a request gets 503 with Retry-After"`
	ActiveTokens     int                 `toml:"active_tokens" default:"0" help:"a node with more prompt tokens than this that are not computed yet counts as full; 0: no such limit"`
	ActiveTokensFrac float64             `toml:"active_tokens_frac" default:"0" help:"active_tokens as a share of the tokens that the engine computes at once (max_batched_tokens of a backend, or as the agent says); 0: no such limit"`
	RefuseOverSLO    bool                `toml:"refuse_over_slo" default:"false" help:"refuse a request for a stream with 503 if its first token is expected later than the policy's ttft_slo_ms, or its own ttft_target, allows; without the queue too. Mode predicted only"`
	Tenants          []QueueTenantConfig `toml:"tenant" help:"weight of one tenant, one table each"`
}

// QueueTenantConfig is the weight of a tenant.
type QueueTenantConfig struct {
	Name   string  `toml:"name" help:"tenant of API keys (cgn-ctl key create --tenant)"`
	Weight float64 `toml:"weight" default:"1" help:"share of the tokens that the tenant gets while others wait too, against 1 for a tenant without a table; 0.001 to 1000"`
}

func (c *QueueConfig) validate(bad problem) {
	at := "router.queue."
	if c.MaxRequests < 1 || c.MaxRequests > 1<<20 {
		bad(at+"max_requests", "%d is not in 1..1048576; leave it out for 4096", c.MaxRequests)
	}
	if c.MaxBytes < 1<<20 {
		bad(at+"max_bytes", "%s is too small; use 1MiB or more, and write the unit, as in 1GiB", c.MaxBytes)
	}
	if c.MaxWait.Std() < time.Millisecond {
		bad(at+"max_wait", "%s is too short; use 1ms or more, or leave it out for 30s", c.MaxWait)
	}
	if c.ActiveTokens < 0 || c.ActiveTokens > 1<<40 {
		bad(at+"active_tokens", "%d is no number of tokens; leave it out for no limit", c.ActiveTokens)
	}
	if v := c.ActiveTokensFrac; !(v >= 0 && v <= 1<<20) {
		bad(at+"active_tokens_frac", "%v is no share of the tokens; leave it out for no limit", v)
	}
	seen := map[string]bool{}
	for i, t := range c.Tenants {
		field := fmt.Sprintf("%stenant[%d].", at, i)
		if err := trust.CheckTenant(t.Name); err != nil {
			bad(field+"name", "%v", err)
		} else if seen[t.Name] {
			bad(field+"name", "%q has a weight already; leave it out of one table", t.Name)
		}
		if seen[t.Name] = true; !(t.Weight >= 0.001 && t.Weight <= 1000) {
			bad(field+"weight", "%v is not in 0.001..1000; leave it out for 1", t.Weight)
		}
	}
}

// waiting returns how legs wait for room.
func (c *QueueConfig) waiting() leg.Waiting {
	if !c.Enabled {
		return leg.Waiting{}
	}
	o := queue.Options{MaxRequests: c.MaxRequests, MaxBytes: int64(c.MaxBytes), Weights: map[string]float64{}}
	for _, t := range c.Tenants {
		o.Weights[t.Name] = t.Weight
	}
	w := leg.Waiting{Queue: queue.New(o), Most: c.MaxWait.Std()}
	if c.ActiveTokens > 0 {
		w.Active.PrefillTokens = &c.ActiveTokens
	}
	if c.ActiveTokensFrac > 0 {
		w.Active.PrefillFraction = &c.ActiveTokensFrac
	}
	return w
}

// These are the indices of queueDefs.
const (
	queueRequests = iota
	queueBytes
	queueForgotten
)

var queueDefs = []metric.Def{
	queueRequests: {
		Name: "cgn_router_queue_requests", Labels: []string{"priority"},
		Help: "Requests that wait for a node with room, by their priority (-1: after all others); router.queue.max_requests bounds their sum.",
	},
	queueBytes: {
		Name: "cgn_router_queue_bytes",
		Help: "Memory that the waiting requests take, as router.queue.max_bytes counts it.",
	},
	queueForgotten: {
		Name: "cgn_router_queue_forgotten_total", Kind: metric.Counter,
		Help: "Tenants whose count of tokens was forgotten, because more than 4,096 others without requests had one.",
	},
}

func (r *Router) readQueue(emit func(def int, value float64, labels ...string)) {
	depth, bytes := r.queue.Depth()
	for band, n := range depth {
		emit(queueRequests, float64(n), metrics.BandName(band))
	}
	emit(queueBytes, float64(bytes))
	emit(queueForgotten, float64(r.queue.Forgotten()))
}
