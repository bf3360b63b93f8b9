package router

import (
	"context"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/kvevents"
	"github.com/cognitora/dataplane/router/peerevents"
	"github.com/cognitora/dataplane/router/prefix"
)

// knowledge is what the router knows of the nodes, and of the blocks that they hold.
type knowledge struct {
	config *Config
	log    *slog.Logger

	cluster  *cluster.Client // nil: static backends only
	backends atomic.Pointer[[]fleet.Backend]
	reloaded chan struct{} // woken after a change of backends
	fleet    *fleet.Fleet
	peers    *peerevents.Client // nil without router.kernel_events

	index    *prefix.Index // blocks as predicted
	holdings *holdings.Map // blocks as told
	events   *kvevents.Followers
	tokens   *tokenizers
	settled  chan struct{} // woken after a change of the models' settings
}

// joinFleet prepares the sources of nodes.
func (r *Router) joinFleet() error {
	c := r.config
	backends, err := c.backends()
	if err != nil {
		return err
	}
	k := &r.known
	k.config, k.log = c, r.log
	k.settled, k.reloaded = make(chan struct{}, 1), make(chan struct{}, 1)
	k.index = prefix.NewIndex(prefix.Options{
		MaxBlocks: c.Prefix.MaxBlocks, PruneTo: c.Prefix.PruneTargetRatio, Lifetime: c.Prefix.TTL.Std(),
	})
	o := fleet.Options{
		Backends: backends, Models: c.modelSettings(), Policies: r.applyModelPolicies, Index: k.index, Logger: r.log,
		Settings: func() { await.Wake(k.settled) },
		Lag:      func(d time.Duration) { r.metrics.SignalLag.Observe(d.Seconds()) },
		EventLag: func(d time.Duration) { r.metrics.EventLag.Observe(d.Seconds()) },
		Pool:     relay.PoolOptions{DialTimeout: c.Timeouts.Dial.Std(), Watch: c.Router.WatchNodes},
		Warm:     c.Router.Warm,
		Cordoned: r.cordoned,
		Stored:   r.stored,
	}
	if len(c.Etcd.Endpoints) > 0 {
		if k.cluster, err = dialEtcd(&c.Etcd); err != nil {
			return err
		}
		o.Cluster = k.cluster
	}
	if o.AgentTLS, err = c.Upstream.client(pki.Agent); err != nil {
		return err
	}
	cacheTLS, err := c.Upstream.client(pki.KVCached, pki.Agent)
	if err != nil {
		return err
	}
	k.backends.Store(&backends)
	k.events = kvevents.New(kvevents.Options{Model: k.onlyModel, Adapter: k.adapterUsed, Logger: r.log})
	k.holdings = holdings.New(holdings.Options{
		Cluster: k.cluster, Static: staticCaches(backends), Setting: k.cacheSetting, Local: k.events.Watch,
		TLS:       cacheTLS,
		MaxBlocks: c.Prefix.MaxHeld, NoEngines: !c.Prefix.KVEvents, Promote: promoteModes[c.Router.Promote],
		Logger: r.log,
	})
	if k.fleet, err = fleet.New(o); err != nil {
		return err
	}
	if at := c.Router.KernelEvents; at != "" {
		k.peers = peerevents.New(peerevents.Options{Path: at, Fleet: k.fleet, Logger: r.log})
	}
	return nil
}

// caches returns the cache daemons that backends name, and the agents that report their engines'
// blocks themselves.
func (k *knowledge) caches(of followed) map[string]string {
	all := map[string]string{}
	for _, n := range of.fleet.Nodes {
		if at := n.Info().KVEvents; at != "" && k.config.Prefix.KVEvents {
			all["agent "+n.ID] = at // no node names this address; the engine is known by the node's id
		}
	}
	maps.Copy(all, staticCaches(*of.backends))
	return all
}

// agentsEvery is the time between two looks for agents that report their engines' blocks
// themselves.
const agentsEvery = 500 * time.Millisecond

// followAgents follows the agents that report their engines' blocks themselves, and the ranks of
// backends whose KV events the router follows. Only followAgents says what is followed.
func (r *Router) followAgents(ctx context.Context) error {
	tick := time.NewTicker(agentsEvery)
	defer tick.Stop()
	var seen followed
	var warned warnings
	caches := logged{message: "cached blocks do not count as configured"}
	shared := logged{message: "cached prompts are not kept apart as configured"}
	for {
		seen = r.known.follow(seen)
		warned.look(seen.fleet, &r.config.Router, r.log)
		caches.look(time.Now(), func() []fleet.Problem { return r.known.cacheMistakes(seen.fleet) }, r.log)
		shared.look(time.Now(), func() []fleet.Problem { return r.sharedPrompts(seen.fleet) }, r.log)
		select {
		case <-tick.C:
		case <-r.known.reloaded:
		case <-ctx.Done():
			return nil
		}
	}
}

// followed is the fleet and the backends whose KV events and cache daemons the router follows.
type followed struct {
	fleet    *fleet.Snapshot
	backends *[]fleet.Backend
}

// follow follows the present fleet and backends, if they are not those that were seen.
func (k *knowledge) follow(seen followed) followed {
	backends := k.backends.Load() // before the fleet, which then is one with these backends
	now := followed{k.fleet.Load(), backends}
	if now != seen {
		k.holdings.SetStatic(k.caches(now))
		k.events.Set(k.config.eventSources(*now.backends, now.fleet))
	}
	return now
}

// onlyModel returns the only model of a node that is no LoRA adapter, or "" without exactly one.
func (k *knowledge) onlyModel(node string) string {
	if n := k.fleet.Load().Node(node); n != nil {
		if models := n.Info().Bases(); len(models) == 1 {
			return models[0]
		}
	}
	return ""
}

// adapterUsed notes that a node's engine stores blocks of a LoRA adapter.
func (k *knowledge) adapterUsed(node string, name []byte) {
	if n := k.fleet.Load().Node(node); n != nil {
		n.UseAdapterBytes(name, time.Now())
	}
}

// setBackends records the backends of the fleet's latest list. followAgents then follows their
// cache daemons and KV events.
func (k *knowledge) setBackends(backends []fleet.Backend) {
	k.backends.Store(&backends)
	await.Wake(k.reloaded)
}

// lifetime returns how long an unused block counts as cached at a node, at its rank with the
// shortest lifetime.
func (k *knowledge) lifetime(n *fleet.Node) (shortest time.Duration) {
	for i, rank := range n.Ranks() {
		if d := k.index.Lifetime(rank.Ref()); i == 0 || d < shortest {
			shortest = d
		}
	}
	return shortest
}

// close frees the parts that have been made.
func (k *knowledge) close() {
	if k.index != nil {
		k.index.Close()
	}
	if k.cluster != nil {
		k.cluster.Close()
	}
}
