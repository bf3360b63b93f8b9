package agent

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"
)

// status is what /readyz answers.
type status struct {
	Ready     bool            `json:"ready"`
	Node      string          `json:"node"`
	Address   string          `json:"address"`
	Draining  bool            `json:"draining"`
	Cordoned  string          `json:"cordoned,omitempty"` // the reason given, "yes" without one
	Etcd      string          `json:"etcd"`               // off, connecting, connected or lost
	InFlight  int             `json:"in_flight"`
	Engine    engineStatus    `json:"engine"`
	Telemetry telemetryStatus `json:"telemetry"`
	GPU       string          `json:"gpu"` // ok, off, built without NVML, or what is wrong
	Power     powerStatus     `json:"power"`
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
	s := telemetryStatus{Source: "none", Push: a.node.PushAddress}
	if r := a.telemetry.Reader(); r != nil {
		s.Source = string(r.Source())
	}
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
	e := a.engine.State()
	s := status{
		Ready: a.ready(), Node: a.node.NodeID, Address: a.node.Address, Draining: a.draining.Load(),
		Etcd: a.member.state(), InFlight: a.front.InFlight(),
		Engine: engineStatus{a.node.Engine, a.engine.URL(), e.Ready, e.Reason, e.Models, e.Restarts},
		GPU:    a.gpus.State(), Power: a.powerStatus(),
		Telemetry: a.telemetryStatus(),
	}
	if c := a.member.cordon.Load(); c != nil {
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
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
}

func (a *Agent) readyz(w http.ResponseWriter, _ *http.Request) {
	s := a.status()
	w.Header().Set("Content-Type", "application/json")
	if !s.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(s)
}
