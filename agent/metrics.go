package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/metric"
)

// ofNode is the label of metrics that each node has.
var ofNode = []string{"node"}

// instruments holds every metric of one agent.
type instruments struct {
	set                          *metric.Set
	looks, restarts              *prometheus.CounterVec
	requests, rejected, failures *prometheus.CounterVec
	clientLeft, panics           *prometheus.CounterVec
	reclaimed                    *prometheus.CounterVec
	seconds                      *prometheus.HistogramVec
	audit                        audit.Metrics
}

func newInstruments() *instruments {
	s := metric.NewSet()
	return &instruments{
		set: s, audit: audit.NewMetrics(s, "cgn_agent"),
		looks: s.Counter("cgn_agent_engine_looks_total", "Looks at the engine's health and metrics, by result: "+
			"answered or failed.", "node", "result"),
		restarts: s.Counter("cgn_agent_engine_restarts_total", "Times a started engine exited and was started again.",
			"node"),
		requests: s.Counter("cgn_agent_requests_total", "Requests answered, by HTTP status.", "node", "code"),
		rejected: s.Counter("cgn_agent_rejected_total", "Requests that the agent refused itself, by reason.", "node",
			"reason"),
		failures: s.Counter("cgn_agent_engine_failures_total",
			"Requests that failed on the way to or from the engine, by phase and kind.", "node", "phase", "kind"),
		clientLeft: s.Counter("cgn_agent_client_left_total", "Requests cancelled because their client had left.",
			"node"),
		panics: s.Counter("cgn_agent_panics_total", "Requests whose handling failed because of a bug.", "node"),
		reclaimed: s.Counter("cgn_agent_registration_reclaimed_total", "Times that the node's key in etcd held a "+
			"value that no daemon writes, and the agent wrote the node's record again.", "node"),
		seconds: s.Histogram("cgn_agent_request_seconds", "Time from request read to response written.",
			requestBuckets, "node"),
	}
}

// nodeInstruments holds the counters of one node.
type nodeInstruments struct {
	engine    engine.Counters
	front     front.Counters
	reclaimed prometheus.Counter
}

// of returns the counters of the node with this id.
func (in *instruments) of(id string) nodeInstruments {
	node := prometheus.Labels{"node": id}
	return nodeInstruments{
		reclaimed: in.reclaimed.WithLabelValues(id),
		engine: engine.Counters{
			Restarts: in.restarts.WithLabelValues(id),
			Answered: in.looks.WithLabelValues(id, "answered"),
			Failed:   in.looks.WithLabelValues(id, "failed"),
		},
		front: front.Counters{
			Requests:   in.requests.MustCurryWith(node),
			Rejected:   in.rejected.MustCurryWith(node),
			Failures:   in.failures.MustCurryWith(node),
			ClientLeft: in.clientLeft.WithLabelValues(id),
			Panics:     in.panics.WithLabelValues(id),
			Seconds:    in.seconds.WithLabelValues(id),
		},
	}
}

var requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// Indexes of stateDefs.
const (
	defDraining = iota
	defReady
	defInFlight
	defEngineReady
	defEngineRunning
	defEngineWaiting
	defEngineKVUsage
	defEnginePromptTokens
	defEngineGenerated
	defCPU
	defCertificateEnd
	defReloadFailures
	defInfo
)

var stateDefs = []metric.Def{
	defReady:              {Name: "cgn_agent_ready", Labels: ofNode, Help: "1 while the node says that it takes requests."},
	defDraining:           {Name: "cgn_agent_draining", Help: "1 while the agent is being stopped."},
	defInFlight:           {Name: "cgn_agent_in_flight", Labels: ofNode, Help: "Requests between the front and the engine."},
	defEngineReady:        {Name: "cgn_agent_engine_ready", Labels: ofNode, Help: "1 while the engine is healthy and lists a model."},
	defEngineRunning:      {Name: "cgn_agent_engine_running", Labels: ofNode, Help: "Requests the engine computes; absent while the engine does not report it."},
	defEngineWaiting:      {Name: "cgn_agent_engine_waiting", Labels: ofNode, Help: "Requests queued in the engine; absent while the engine does not report it."},
	defEngineKVUsage:      {Name: "cgn_agent_engine_kv_usage_ratio", Labels: ofNode, Help: "Share of the engine's KV cache in use; absent while the engine does not report it."},
	defEnginePromptTokens: {Name: "cgn_agent_engine_prompt_tokens_total", Labels: ofNode, Kind: metric.Counter, Help: "Prompt tokens since the engine started, as it counts them."},
	defEngineGenerated:    {Name: "cgn_agent_engine_generation_tokens_total", Labels: ofNode, Kind: metric.Counter, Help: "Tokens generated since the engine started, as it counts them."},
	defCPU:                {Name: "cgn_agent_host_cpu_ratio", Help: "Busy share of the host's CPUs since the last scrape."},
	defCertificateEnd:     {Name: "cgn_agent_tls_certificate_end_seconds", Help: "When the front's certificate ends, Unix time; absent without TLS."},
	defReloadFailures:     {Name: "cgn_agent_tls_reload_failures_total", Kind: metric.Counter, Help: "Changed certificate files that could not be used, since the start; absent without TLS."},
	defInfo:               {Name: "cgn_agent_info", Labels: []string{"node", "engine", "version"}, Help: "Always 1; the labels name the engine program and its version."},
}

// watch makes the agent's state readable at each scrape.
func (in *instruments) watch(a *Agent) {
	in.set.Read(eventDefs, func(emit emit) {
		for _, n := range a.nodes {
			n.emitEvents(emit)
		}
	})
	in.set.Read(stateDefs, func(emit emit) {
		emit(defDraining, metric.Bool(a.draining.Load()))
		emitGauge(emit, defCPU, a.host.cpu.percent(time.Now()), 100)
		if a.identity != nil {
			emit(defCertificateEnd, float64(a.identity.NotAfter().Unix()))
			emit(defReloadFailures, float64(a.identity.Failures()))
		}
		for _, n := range a.nodes {
			n.emitState(emit)
		}
	})
	in.watchMeters(a)
	in.set.Read(peerDefs, a.peers.emit)
	in.watchKernel(a)
}

func (n *node) emitState(emit emit) {
	s, id := n.engine.State(), n.id()
	emitAll(emit, defReady, []float64{metric.Bool(n.ready()), float64(n.front.InFlight()), metric.Bool(s.Ready)}, id)
	emitKnown(emit, &s.Stats, id)
	emit(defInfo, 1, id, n.described.Engine, n.described.Version)
}

func emitKnown(emit emit, s *enginemetrics.Stats, id string) {
	for _, g := range []struct {
		def   int
		field enginemetrics.Field
		value float64
	}{
		{defEngineRunning, enginemetrics.Running, s.Running},
		{defEngineWaiting, enginemetrics.Waiting, s.Waiting},
		{defEngineKVUsage, enginemetrics.KVUsage, s.KVUsage},
		{defEnginePromptTokens, enginemetrics.PromptTokens, s.PromptTokens},
		{defEngineGenerated, enginemetrics.GenerationTokens, s.GenerationTokens},
	} {
		if s.Known(g.field) {
			emit(g.def, g.value, id)
		}
	}
}

// Metrics returns the table of an agent's metrics, sorted by name.
func Metrics() []metric.Def {
	in := newInstruments()
	for _, defs := range [][]metric.Def{stateDefs, meters(), eventDefs, peerDefs} {
		in.set.Read(defs, func(emit) {})
	}
	in.watchKernel(nil)
	return in.set.Defs()
}
