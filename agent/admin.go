package agent

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/adminport"
)

// status is the answer of /readyz.
type status struct {
	Ready     bool            `json:"ready"` // true if every node is ready
	Draining  bool            `json:"draining"`
	Etcd      string          `json:"etcd"` // off, connecting, connected or lost
	Nodes     []nodeStatus    `json:"nodes"`
	Telemetry telemetryStatus `json:"telemetry"`
	GPU       string          `json:"gpu"` // ok, off, built without NVML, or an error
	Power     powerStatus     `json:"power"`
}

// nodeStatus is the status of one node.
type nodeStatus struct {
	Node     string       `json:"node"`
	Address  string       `json:"address"`
	Ready    bool         `json:"ready"`
	InFlight int          `json:"in_flight"`
	Engine   engineStatus `json:"engine"`
	GPUs     []string     `json:"gpus,omitempty"`  // GPUs of the engine that the agent reads
	Watts    float64      `json:"watts,omitempty"` // the node's share of the host's power
}

// powerStatus is the host's power, if it is known, and the status of each source.
type powerStatus struct {
	Watts   float64           `json:"watts,omitempty"`
	Average float64           `json:"watts_avg30,omitempty"`
	Source  string            `json:"source,omitempty"`
	AgeMs   int64             `json:"age_ms,omitempty"`
	Sources map[string]string `json:"sources"` // status by source: ok, off, or an error
}

type telemetryStatus struct {
	Source  string          `json:"source"` // bpf, proc or none
	Missing []missingStatus `json:"missing,omitempty"`
	Push    string          `json:"push,omitempty"` // address that pushes load to routers
	Routers int             `json:"routers"`        // routers that follow the pushed load
}

// missingStatus is a figure that is missing now, and the reason.
type missingStatus struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

func (a *Agent) telemetryStatus() telemetryStatus {
	s := telemetryStatus{Source: "none", Push: a.nodes[0].described.PushAddress}
	a.telemetry.With(func(r bpf.Reader, _ telemetry.Engines) { s.Source = string(r.Source()) })
	for _, m := range a.telemetry.Missing() {
		s.Missing = append(s.Missing, missingStatus{m.What, m.Reason})
	}
	if a.push != nil {
		s.Routers = a.push.Stats().Followers
	}
	return s
}

type engineStatus struct {
	Kind     string   `json:"kind"`
	URL      string   `json:"url"`
	Ready    bool     `json:"ready"`
	Reason   string   `json:"reason,omitempty"`
	Models   []string `json:"models"`
	Restarts int64    `json:"restarts"`
}

func (a *Agent) status() status {
	s := status{Ready: true, Draining: a.draining.Load(), Etcd: a.etcdState(), GPU: a.host.gpus.State(),
		Power: a.powerStatus(), Telemetry: a.telemetryStatus()}
	var host hostReading
	a.host.read(time.Now(), &host)
	for _, n := range a.nodes {
		one := n.status(&host)
		s.Nodes = append(s.Nodes, one)
		s.Ready = s.Ready && one.Ready
	}
	return s
}

func (n *node) status(host *hostReading) nodeStatus {
	e := n.engine.State()
	s := nodeStatus{
		Node: n.id(), Address: n.described.Address, Ready: n.ready(), InFlight: n.front.InFlight(),
		Engine: engineStatus{n.described.Engine, n.engine.URL(), e.Ready, e.Reason, e.Models, e.Restarts},
	}
	for _, d := range host.engines[n.index] {
		s.GPUs = append(s.GPUs, d.Name)
	}
	s.Watts = host.watts(n).Watts.Or(0)
	return s
}

// admin serves the endpoints for operators and probes.
func (a *Agent) admin() *adminport.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such endpoint here; there are /debug/pprof/, /healthz, /metrics, /readyz", 404)
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", a.metrics.set.Handler())
	for path, handler := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline,
		"profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		mux.HandleFunc("GET /debug/pprof/"+path, handler)
	}
	guarded := adminport.Audited(a.audit, adminport.Changes{}, a.config.AdminTLS.Guard(a.config.Agent.Admin, mux))
	return adminport.New(guarded, a.adminTLS, a.log)
}

func (a *Agent) readyz(w http.ResponseWriter, _ *http.Request) {
	s := a.status()
	w.Header().Set("Content-Type", "application/json")
	if !s.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(s)
}
