package router

import (
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/kvevents"
	"github.com/cognitora/dataplane/router/metrics"
)

// These are the indices of nodeGauges. The first ones have the label node only, and a value for
// each node.
const (
	nodeInFlight = iota
	nodeEligible
	nodeOpens
	nodeSuspect
	nodeSuspected
	nodeSilentCut
	nodeBlockLifetime
	nodePrefill
	nodeBlocks
	nodeState
	nodeConnections
	nodeSignals
	nodeSignalAge
	nodeWatts
	nodeSlowdown
	nodePathRTT
	nodePathSegments
	nodePathRetransmits
	nodePathTimeouts
	nodeAdapters
	nodeFigures // index of the first of figures
)

// figures are the figures of a node's load with a metric of their own, in the order of nodeGauges.
var figures = func() (all []load.Signal) {
	for _, s := range load.Samples() {
		for _, signal := range s.Signals {
			if signal.Metric != "" {
				all = append(all, signal)
			}
		}
	}
	return all
}()

func figureDefs() (defs []metric.Def) {
	for _, f := range figures {
		defs = append(defs, metric.Def{Name: "cgn_router_node_" + f.Metric, Labels: []string{"node"}, Help: f.Help})
	}
	return defs
}

var nodeGauges = append([]metric.Def{
	nodeInFlight: {
		Name: "cgn_router_node_in_flight", Labels: []string{"node"},
		Help: "Requests that this router has in flight on the node.",
	},
	nodeEligible: {
		Name: "cgn_router_node_eligible", Labels: []string{"node"},
		Help: "1 if the node may be picked now, else 0.",
	},
	nodeState: {
		Name: "cgn_router_node_state", Labels: []string{"node", "state"},
		Help: "1 for the state of the node's breaker: unproven, healthy, half-open, open or aside.",
	},
	nodeOpens: {
		Name: "cgn_router_node_breaker_opens_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "How often the node's breaker has opened or the node was set aside.",
	},
	nodeSuspect: {
		Name: "cgn_router_node_suspect", Labels: []string{"node"},
		Help: "1 while packets to the node are not acknowledged, " +
			"so that it is picked only where most nodes of a model are suspect.",
	},
	nodeSuspected: {
		Name: "cgn_router_node_suspected_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "How often the node has become suspect.",
	},
	nodeSilentCut: {
		Name: "cgn_router_node_silent_cut_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "Requests whose connection was ended because the node acknowledged no packets: " +
			"asked of another node, or ended with an error event.",
	},
	nodeBlockLifetime: {
		Name: "cgn_router_block_lifetime_seconds", Labels: []string{"node"},
		Help: "How long an untouched block is believed to stay in the node's cache.",
	},
	nodePrefill: {
		Name: "cgn_router_node_prefill_tokens", Labels: []string{"node"},
		Help: "Uncached prompt tokens of this router's requests that the node has not begun to answer.",
	},
	nodeBlocks: {
		Name: "cgn_router_node_active_blocks", Labels: []string{"node"},
		Help: "KV blocks, of 16 tokens, of this router's requests on the node; blocks that requests share count once.",
	},
	nodeConnections: {
		Name: "cgn_router_upstream_connections", Labels: []string{"node", "state"},
		Help: "Connections to the node: idle or open (idle ones included).",
	},

	nodeSignals: {
		Name: "cgn_router_node_signals", Labels: []string{"node", "from"},
		Help: "1 for the source of the node's load: stream (from its agent), heartbeat (of its agent, in etcd), " +
			"metrics (of the engine, without an agent), or nobody, so that only this router's own counts are used.",
	},
	nodeSignalAge: {
		Name: "cgn_router_node_signal_age_seconds", Labels: []string{"node", "signal"},
		Help: "Age of the load sample in use, by its kind: engine, kernel, sm or watts; absent while there is none. " +
			"Samples older than three heartbeats of the agent, 15 s by default and at least, are not used.",
	},
	nodePathRTT: {
		Name: "cgn_router_node_path_rtt_seconds", Labels: []string{"node"},
		Help: "Smoothed round trip of this host's connections to the node, as its kernel last measured it; absent " +
			"without router.kernel_events.",
	},
	nodePathSegments: {
		Name: "cgn_router_node_path_segments_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "TCP segments with payload that this host has sent to the node, repeated ones included; all processes' " +
			"connections count. Absent without router.kernel_events.",
	},
	nodePathRetransmits: {
		Name: "cgn_router_node_path_retransmits_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "TCP segments that this host has sent to the node again; absent without router.kernel_events.",
	},
	nodePathTimeouts: {
		Name: "cgn_router_node_path_timeouts_total", Kind: metric.Counter, Labels: []string{"node"},
		Help: "Retransmission timeouts of connections to the node; absent without router.kernel_events.",
	},

	nodeAdapters: {
		Name: "cgn_router_node_adapters", Labels: []string{"node", "state"},
		Help: "LoRA adapters that the node's engine serves, by state: loaded, listed (not loaded) or unknown; absent " +
			"for a node without adapters.",
	},

	nodeSlowdown: {
		Name: "cgn_router_node_slowdown_ratio", Labels: []string{"node", "part"},
		Help: "Time of a part of the node's work, prefill or decode, as a share of that of nodes of its kind: 1 is as " +
			"long, 2 twice as long. Mode predicted only; absent until 8 answers have shown it, while none has for 10 " +
			"minutes, and for a node that is alone in its kind.",
	},
	nodeWatts: {
		Name: "cgn_router_node_power_watts", Labels: []string{"node"},
		Help: "The node's part of its host's power: mean of 30 s, or the latest reading.",
	},
}, figureDefs()...)

// These are the indices of poolGauges.
const (
	poolInFlight = iota
	poolMaxQueue
)

var poolGauges = []metric.Def{
	poolInFlight: {
		Name: "cgn_router_model_in_flight", Labels: []string{"model", "role"},
		Help: "Requests in flight on the model's nodes of the role; what max_queue caps.",
	},
	poolMaxQueue: {
		Name: "cgn_router_model_max_queue", Labels: []string{"model", "role"},
		Help: "Cap on cgn_router_model_in_flight, as max_queue or max_queue_decode sets it.",
	},
}

// These are the indices of routerDefs.
const (
	routerConnections = iota
	routerStreams
	routerInFlight
	routerIndexBlocks
	routerFleetNodes
	routerFleetStale
	routerReloadFailed
	routerFleetMalformed
	routerSignalReadings
	routerSignalBreaks
	routerSignalMalformed
	routerConnectionLooks
	routerBodyBytes
	routerResumeBytes
	routerResuming
	routerKeys
	routerKeysStale
)

var routerDefs = []metric.Def{
	routerConnections: {Name: "cgn_router_connections", Help: "Open client connections."},
	routerStreams:     {Name: "cgn_router_streams", Help: "Streamed responses being relayed."},
	routerInFlight:    {Name: "cgn_router_in_flight", Help: "Requests in flight that admission has let in."},
	routerIndexBlocks: {Name: "cgn_router_index_blocks", Help: "Blocks in the prefix index."},
	routerFleetNodes:  {Name: "cgn_router_fleet_nodes", Help: "Nodes in the fleet's snapshot."},
	routerFleetStale: {
		Name: "cgn_router_fleet_stale", Help: "1 while etcd does not answer and the last snapshot serves.",
	},
	routerReloadFailed: {
		Name: "cgn_router_reload_failed",
		Help: "1 if the last SIGHUP changed nothing because the configuration has a mistake, until one succeeds.",
	},
	routerFleetMalformed: {
		Name: "cgn_router_fleet_malformed_total", Kind: metric.Counter,
		Help: "Values in etcd that the router could not use, since its start.",
	},
	routerSignalReadings: {
		Name: "cgn_router_signal_readings_total", Kind: metric.Counter,
		Help: "Readings of load that agents have sent to the router.",
	},
	routerSignalBreaks: {
		Name: "cgn_router_signal_breaks_total", Kind: metric.Counter,
		Help: "Agents' streams of load that ended, or could not be begun, and were tried again.",
	},
	routerSignalMalformed: {
		Name: "cgn_router_signal_malformed_total", Kind: metric.Counter,
		Help: "Messages on agents' streams of load that the router did not use.",
	},
	routerConnectionLooks: {
		Name: "cgn_router_connection_looks_total", Kind: metric.Counter,
		Help: "Connections in use about which the kernel was asked whether their packets are acknowledged.",
	},
	routerBodyBytes: {
		Name: "cgn_router_body_bytes",
		Help: "Bytes of request bodies that count towards limits.max_body_total: those above 64 KiB, and those of " +
			"streams that may go on at another node.",
	},
	routerResumeBytes: {
		Name: "cgn_router_resume_bytes",
		Help: "Bytes that are kept for streams that may go on at another node; what router.resume.memory bounds.",
	},
	routerResuming: {
		Name: "cgn_router_resuming_streams",
		Help: "Broken streams that another node has been asked to go on with, until its first event; at most 64.",
	},
	routerKeys: {Name: "cgn_router_api_keys", Help: "API keys that the router knows, revoked and expired ones included."},
	routerKeysStale: {
		Name: "cgn_router_api_keys_stale",
		Help: "1 while the API keys, or some of them, cannot be read from their file or etcd. Those read last count on.",
	},
}

// emitter receives the value of one metric of a list of definitions.
type emitter func(def int, value float64, labels ...string)

// all emits the values of the definitions with their indices.
func (emit emitter) all(values []float64, labels ...string) {
	for def, value := range values {
		emit(def, value, labels...)
	}
}

// observe defines the metrics that are read from the parts at each scrape.
func (r *Router) observe() {
	s := r.metrics.Set
	s.Read(routerDefs, func(emit func(def int, value float64, labels ...string)) {
		snap, told := r.known.fleet.Load(), r.known.fleet.Signals()
		resuming, resume := r.plans.Resuming()
		emitter(emit).all([]float64{
			routerConnections:     float64(r.gateway.Connections()),
			routerStreams:         float64(r.gateway.Streams()),
			routerInFlight:        float64(r.gate.InFlight()),
			routerIndexBlocks:     float64(r.known.index.Len()),
			routerFleetNodes:      float64(len(snap.Nodes)),
			routerFleetStale:      metric.Bool(snap.Stale),
			routerReloadFailed:    metric.Bool(r.reloadFailed.Load()),
			routerFleetMalformed:  float64(r.known.fleet.Malformed()),
			routerSignalReadings:  float64(told.Readings.Load()),
			routerSignalBreaks:    float64(told.Broken.Load()),
			routerSignalMalformed: float64(told.Malformed.Load()),
			routerConnectionLooks: float64(r.known.fleet.Looks()),
			routerBodyBytes:       float64(r.gateway.BodyBytes()),
			routerResumeBytes:     float64(resume),
			routerResuming:        float64(resuming),
			routerKeys:            float64(r.callers.keys.Len()),
			routerKeysStale:       metric.Bool(r.callers.keys.Problem() != ""),
		})
	})
	s.Read(tlsDefs, r.ports.readTLS)
	s.Read(limitDefs, r.callers.readLimits)
	s.Read(sharedDefs, r.callers.readShared)
	s.Read(usageDefs, r.records.readUsage)
	s.Read(sessionDefs, r.readSessions)
	s.Read(oidcDefs, r.callers.readOIDC)
	s.Read(queueDefs, r.readQueue)
	s.Read(peerDefs, r.known.readPeers)
	s.Read(holdingsGauges, r.known.readHoldings)
	s.Read(eventDefs, r.known.readEvents)
	s.Read(learnedDefs, r.known.readLearned)
	s.Read(nodeGauges, r.readNodes)
	s.Read(poolGauges, func(emit func(def int, value float64, labels ...string)) {
		r.gate.Each(func(model, role string, inFlight, limit int64) {
			emitter(emit).all([]float64{poolInFlight: float64(inFlight), poolMaxQueue: float64(limit)}, model, role)
		})
	})
}

// These are the indices of holdingsGauges.
const (
	holdingsCaches = iota
	holdingsLive
	holdingsEngines
	holdingsRoomless
	holdingsBlocks
	holdingsReaders
	holdingsHeld
	holdingsLeftOut
	holdingsBytes
	holdingsOverflow
	holdingsRefused
	holdingsReconnects
	holdingsResyncs
	holdingsPromotions
	holdingsPromotionsFailed
	holdingsPromotionsDropped
	holdingsPromoted
)

var holdingsGauges = []metric.Def{
	holdingsCaches: {Name: "cgn_router_caches", Help: "Cache daemons whose residency stream is followed."},
	holdingsLive: {
		Name: "cgn_router_caches_live",
		Help: "Followed cache daemons whose stream is up to date, so that their blocks count in routing.",
	},
	holdingsEngines: {
		Name: "cgn_router_caches_engines",
		Help: "Engines whose own cached blocks the router knows through a cache daemon.",
	},
	holdingsRoomless: {
		Name: "cgn_router_caches_engines_left_out",
		Help: "Engines whose own cached blocks count as predicted because all 32,768 places of the router's index are taken.",
	},
	holdingsBlocks: {Name: "cgn_router_caches_blocks", Help: "Blocks that the followed cache daemons hold; a block with several holders, up to 64, counts once."},
	holdingsReaders: {
		Name: "cgn_router_caches_readers",
		Help: "Nodes whose engines have told a cache daemon which blocks they can read.",
	},
	holdingsHeld: {
		Name: "cgn_router_caches_configurations",
		Help: "Configurations (namespaces without ranks) of the blocks of all followed cache daemons.",
	},
	holdingsLeftOut: {
		Name: "cgn_router_caches_left_out_total", Kind: metric.Counter,
		Help: "Reported blocks that do not count because a cache daemon has over 16 configurations, or all daemons over 512 besides the first of each, or because all 32,768 places of the router's index are taken.",
	},
	holdingsBytes: {Name: "cgn_router_caches_bytes", Help: "Memory of the tables that say which cache daemon holds which block."},
	holdingsOverflow: {
		Name: "cgn_router_caches_overflow_total", Kind: metric.Counter,
		Help: "Reported blocks past prefix.max_held, which do not count.",
	},
	holdingsRefused: {
		Name: "cgn_router_caches_refused",
		Help: "Cache daemons in etcd that the router does not follow because it follows 1,024 already.",
	},
	holdingsReconnects: {
		Name: "cgn_router_caches_reconnects_total", Kind: metric.Counter,
		Help: "Residency streams of cache daemons that broke and were begun again.",
	},
	holdingsResyncs: {
		Name: "cgn_router_caches_resyncs_total", Kind: metric.Counter,
		Help: "Snapshots of a cache daemon's blocks that the router has taken.",
	},

	holdingsPromotions: {
		Name: "cgn_router_caches_promotions_total", Kind: metric.Counter,
		Help: "Times that a cache daemon was asked to bring a prompt's blocks into RAM ahead of its request, also in hand-overs.",
	},
	holdingsPromotionsFailed: {
		Name: "cgn_router_caches_promotions_failed_total", Kind: metric.Counter,
		Help: "Requests to a cache daemon to load a prompt's blocks into RAM that failed, or took longer than 10 s (in hand-overs 15 s).",
	},
	holdingsPromotionsDropped: {
		Name: "cgn_router_caches_promotions_dropped_total", Kind: metric.Counter,
		Help: "Prompts for which no cache daemon was asked to load blocks into RAM, because 64 others wait, or 3 for the same daemon; in hand-overs because the host that is asked, or the one that stores the blocks, had as many of 128 places as were free.",
	},
	holdingsPromoted: {
		Name: "cgn_router_caches_promoted_blocks_total", Kind: metric.Counter,
		Help: "Blocks that cache daemons loaded into RAM because the router asked ahead of a request.",
	},
}

func (k *knowledge) readHoldings(emit func(def int, value float64, labels ...string)) {
	h := k.holdings.Stats()
	emitter(emit).all([]float64{
		holdingsCaches:            float64(h.Caches),
		holdingsLive:              float64(h.Live),
		holdingsEngines:           float64(h.Engines),
		holdingsRoomless:          float64(h.Roomless),
		holdingsBlocks:            float64(h.Index.Blocks),
		holdingsReaders:           float64(h.Readers),
		holdingsHeld:              float64(h.Held),
		holdingsLeftOut:           float64(h.LeftOut),
		holdingsBytes:             float64(h.Index.Bytes),
		holdingsOverflow:          float64(h.Overflow),
		holdingsRefused:           float64(h.Refused),
		holdingsReconnects:        float64(h.Reconnects),
		holdingsResyncs:           float64(h.Resyncs),
		holdingsPromotions:        float64(h.Promotions),
		holdingsPromotionsFailed:  float64(h.PromotionsFailed),
		holdingsPromotionsDropped: float64(h.PromotionsDropped),
		holdingsPromoted:          float64(h.Promoted),
	})
}

// These are the indices of eventDefs.
const (
	eventsFollowing = iota
	eventsComplete
	eventsBlocks
	eventsUntokenised
	eventsCounted // index of the first counter
)

var eventDefs = func() []metric.Def {
	defs := []metric.Def{
		eventsFollowing: {
			Name: "cgn_router_kv_events_following", Labels: []string{"node"},
			Help: "1 while the router follows the engine's KV events itself, and so knows its cached blocks.",
		},
		eventsComplete: {
			Name: "cgn_router_kv_events_complete", Labels: []string{"node"},
			Help: "1 if the engine's KV events were followed from an empty cache on; 0: blocks that it cached " +
				"earlier do not count.",
		},
		eventsBlocks: {
			Name: "cgn_router_kv_events_blocks", Labels: []string{"node"},
			Help: "Blocks that the engine has cached, as its KV events say.",
		},
		eventsUntokenised: {
			Name: "cgn_router_kv_events_untokenised", Labels: []string{"node"},
			Help: "1 while an engine's KV events are known but its model has no tokenizer ([[model]]), so that " +
				"prompts in text are still predicted.",
		},
	}
	for _, c := range kvevents.Counters {
		defs = append(defs, metric.Def{
			Name: "cgn_router_kv_events_" + c.Name + "_total", Labels: []string{"node"},
			Kind: metric.Counter, Help: c.Help,
		})
	}
	return defs
}()

func (k *knowledge) readEvents(emit func(def int, value float64, labels ...string)) {
	snap := k.fleet.Load()
	for _, n := range snap.Nodes {
		if k.untokenised(snap, n) != "" {
			emit(eventsUntokenised, 1, n.ID)
		}
	}
	k.events.Each(func(node string, s *kvevents.Stats) {
		emit(eventsFollowing, metric.Bool(s.Following), node)
		emit(eventsComplete, metric.Bool(s.Complete), node)
		emit(eventsBlocks, float64(s.Blocks), node)
		for i, count := range s.Counts() {
			emit(eventsCounted+i, float64(count), node)
		}
	})
}

var states = []health.State{health.Unproven, health.Healthy, health.HalfOpen, health.Open, health.Aside}

func (r *Router) readNodes(emit func(def int, value float64, labels ...string)) {
	now := time.Now()
	r.legs.Slowdowns(now, func(node, part string, ratio float64) { emit(nodeSlowdown, ratio, node, part) })
	for _, n := range r.known.fleet.Load().Nodes {
		ok, _ := n.Eligible(now)
		times, cut := n.Health.Suspected()
		emitter(emit).all([]float64{
			nodeInFlight:      float64(n.InFlight()),
			nodeEligible:      metric.Bool(ok),
			nodeOpens:         float64(n.Health.Opens()),
			nodeSuspect:       metric.Bool(n.Health.Suspect()),
			nodeSuspected:     float64(times),
			nodeSilentCut:     float64(cut),
			nodeBlockLifetime: r.known.lifetime(n).Seconds(),
			nodePrefill:       float64(n.OwnPrefill(now)),
			nodeBlocks:        n.Blocks(),
		}, n.ID)
		for _, s := range states {
			emit(nodeState, metric.Bool(n.Health.State() == s), n.ID, s.String())
		}
		idle, open := n.Pool.Stats()
		emit(nodeConnections, float64(idle), n.ID, "idle")
		emit(nodeConnections, float64(open), n.ID, "open")
		readSignals(emit, n, now)
		for state, count := range n.AdapterCounts() {
			emit(nodeAdapters, float64(count), n.ID, state)
		}
		if p := n.Path(); p != nil {
			if p.RTT > 0 {
				emit(nodePathRTT, p.RTT.Seconds(), n.ID)
			}
			emit(nodePathSegments, float64(p.Segments), n.ID)
			emit(nodePathRetransmits, float64(p.Retransmits), n.ID)
			emit(nodePathTimeouts, float64(p.Timeouts), n.ID)
		}
	}
}

// readSignals emits the known load of the node, and its age.
func readSignals(emit func(def int, value float64, labels ...string), n *fleet.Node, now time.Time) {
	l := n.Load()
	emit(nodeSignals, 1, n.ID, string(l.From))
	for _, s := range load.Samples() {
		if at := s.At(&l.Load); !at.IsZero() {
			emit(nodeSignalAge, at.Age(now).Seconds(), n.ID, s.Name)
		}
	}
	for i := range figures {
		if v, known := figures[i].In(&l.Load).Get(); known {
			emit(nodeFigures+i, v/figures[i].Base, n.ID)
		}
	}
	if v, known := l.Drawn().Get(); known {
		emit(nodeWatts, v, n.ID)
	}
}

// Metrics returns the table of all metrics that a router exports.
func Metrics() []metric.Def {
	r := &Router{metrics: metrics.New()}
	r.observe()
	return r.metrics.Set.Defs()
}
