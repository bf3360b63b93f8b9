package agent

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
)

// status is what /readyz answers.
type status struct {
	Ready     bool            `json:"ready"` // every node is
	Draining  bool            `json:"draining"`
	Etcd      string          `json:"etcd"` // off, connecting, connected or lost
	Nodes     []nodeStatus    `json:"nodes"`
	Telemetry telemetryStatus `json:"telemetry"`
	GPU       string          `json:"gpu"` // ok, off, built without NVML, or what is wrong
	Power     powerStatus     `json:"power"`
}

// nodeStatus is how one node is.
type nodeStatus struct {
	Node     string       `json:"node"`
	Address  string       `json:"address"`
	Ready    bool         `json:"ready"`
	Cordoned string       `json:"cordoned,omitempty"` // the reason given, "yes" without one
	InFlight int          `json:"in_flight"`
	Engine   engineStatus `json:"engine"`
	GPUs     []string     `json:"gpus,omitempty"`  // of the engine that are read
	Watts    float64      `json:"watts,omitempty"` // the node's part of the host's power
}

// powerStatus is what the host draws, as far as that is known, and how each source is.
type powerStatus struct {
	Watts   float64           `json:"watts,omitempty"`
	Average float64           `json:"watts_avg30,omitempty"`
	Source  string            `json:"source,omitempty"`
	AgeMs   int64             `json:"age_ms,omitempty"`
	Sources map[string]string `json:"sources"` // ok, off, or what is wrong
}

type telemetryStatus struct {
	Source  string          `json:"source"` // bpf, proc or none
	Missing []missingStatus `json:"missing,omitempty"`
	Push    string          `json:"push,omitempty"` // where routers are told of load
	Routers int             `json:"routers"`        // that are
}

// missingStatus is something that cannot be told now, and why.
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
	if c := n.member.cordon.Load(); c != nil {
		if s.Cordoned = c.Reason; s.Cordoned == "" {
			s.Cordoned = "yes"
		}
	}
	return s
}

// admin serves what operators and probes ask.
func (a *Agent) admin() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", a.metrics.set.Handler())
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10}
}

func (a *Agent) readyz(w http.ResponseWriter, _ *http.Request) {
	s := a.status()
	w.Header().Set("Content-Type", "application/json")
	if !s.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(s)
}
