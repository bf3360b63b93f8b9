package fleet

import (
	"math"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
)

// View is a snapshot for people, as /debug/fleet shows it.
type View struct {
	Rev        uint64      `json:"rev"`
	Stale      bool        `json:"stale"`
	StaleSince *time.Time  `json:"stale_since,omitempty"`
	Nodes      []NodeView  `json:"nodes"`
	Models     []ModelInfo `json:"models"`
	Partial    bool        `json:"partial"` // a backend, or etcd, has never yet said what it serves
	Problems   []Problem   `json:"problems,omitempty"`
}

// ModelInfo is one model of a View.
type ModelInfo struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Nodes   []string `json:"nodes"`
	Prefill []string `json:"prefill,omitempty"`
}

// NodeView is one node of a View. Unknown telemetry is left out.
type NodeView struct {
	ID            string   `json:"id"`
	Source        Source   `json:"source"`
	Address       string   `json:"address"`
	Role          string   `json:"role"`
	Engine        string   `json:"engine,omitempty"`
	Models        []string `json:"models"`
	Upstream      []string `json:"upstream_models,omitempty"` // where they are called otherwise by the engine
	State         string   `json:"state"`                     // of its breaker, or "no model"
	Eligible      bool     `json:"eligible"`
	Suspect       bool     `json:"suspect"`               // packets to it are not acknowledged
	SuspectWhy    string   `json:"suspect_why,omitempty"` // what has shown it
	SuspectMs     *int64   `json:"suspect_ms,omitempty"`  // how long it has been so
	Reason        string   `json:"reason,omitempty"`      // why it takes no requests, or few
	LastError     string   `json:"last_error,omitempty"`
	InFlight      int32    `json:"in_flight"`
	MaxConcurrent int32    `json:"max_concurrent,omitempty"` // no limit where it is left out
	Others        int32    `json:"in_flight_of_others"`      // that other routers and clients have on it, with
	Waiting       int32    `json:"waiting_of_others"`
	EngineBusy    *float64 `json:"engine_running,omitempty"`
	EngineQueue   *float64 `json:"engine_waiting,omitempty"`
	SM            *float64 `json:"sm,omitempty"`
	Watts         *float64 `json:"watts,omitempty"`
	KVUsage       *float64 `json:"kv_usage,omitempty"`
	LoadAgeMs     *int64   `json:"load_age_ms,omitempty"` // since the heartbeat or scrape
	Signals       Signals  `json:"signals"`
	Path          *PathOf  `json:"path,omitempty"` // what the kernel of the router's host counts of connections to the node
	Opens         uint64   `json:"breaker_opens"`
	Version       string   `json:"version,omitempty"`
}

// Signals is what a node's agent measures, with the ages of the samples. What is unknown is left out.
type Signals struct {
	From        string   `json:"from"`                       // stream, heartbeat or nobody
	CPU         *float64 `json:"cpus,omitempty"`             // that the engine's processes use
	EngineWait  *float64 `json:"engine_wait,omitempty"`      // threads of them that wait for a CPU, on average
	RunDelayMs  *float64 `json:"run_delay_p99_ms,omitempty"` // of all threads of the host
	RTTMs       *float64 `json:"rtt_p50_ms,omitempty"`
	Retransmits *float64 `json:"retransmitted,omitempty"` // share of the segments
	KernelAgeMs *int64   `json:"kernel_age_ms,omitempty"` // of the sample of these
	SMAgeMs     *int64   `json:"sm_age_ms,omitempty"`
	WattsAgeMs  *int64   `json:"watts_age_ms,omitempty"`
}

// PathOf is a Path in milliseconds.
type PathOf struct {
	RTTMs         *float64 `json:"rtt_ms,omitempty"`
	RTTMinMs      *float64 `json:"rtt_min_ms,omitempty"`
	RTTAgeMs      *int64   `json:"rtt_age_ms,omitempty"`    // since it was last measured anew
	Retransmitted *float64 `json:"retransmitted,omitempty"` // share of the segments of the last 10 to 20 s
	Segments      uint64   `json:"segments"`
	Retransmits   uint64   `json:"retransmits"`
	Timeouts      uint64   `json:"retransmission_timeouts"`
	Resets        uint64   `json:"resets"`
	Failed        uint64   `json:"failed_connects"`
	AgeMs         int64    `json:"age_ms"`
}

// View describes the path at now; nil for nil.
func (p *Path) View(now time.Time) *PathOf {
	if p == nil {
		return nil
	}
	v := &PathOf{
		Retransmitted: known(p.Share), Segments: p.Segments, Retransmits: p.Retransmits, Timeouts: p.Timeouts, Resets: p.Resets, Failed: p.Failed,
		AgeMs: now.Sub(p.At).Milliseconds(),
	}
	if p.RTT > 0 {
		v.RTTMs, v.RTTMinMs, v.RTTAgeMs = ms(p.RTT), ms(p.RTTMin), ageMs(now, p.RTTAt)
	}
	return v
}

func ms(d time.Duration) *float64 {
	v := float64(d) / float64(time.Millisecond)
	return &v
}

// From says where the figures come from: stream, heartbeat or nobody.
func (l *Load) From() string {
	switch {
	case l.Pushed:
		return "stream"
	case !l.KernelAt.IsZero() || !l.SMAt.IsZero() || !l.WattsAt.IsZero():
		return "heartbeat"
	}
	return "nobody"
}

// Signals describes what the agent has measured, at now.
func (l *Load) Signals(now time.Time) Signals {
	return Signals{
		From: l.From(), CPU: known(l.CPU), EngineWait: known(l.EngineWait), RunDelayMs: known(l.RunDelay * 1000), RTTMs: known(l.RTT * 1000), Retransmits: known(l.Retransmits),
		KernelAgeMs: ageMs(now, l.KernelAt), SMAgeMs: ageMs(now, l.SMAt), WattsAgeMs: ageMs(now, l.WattsAt),
	}
}

// ageMs is nil of what has never been.
func ageMs(now, at time.Time) *int64 {
	if at.IsZero() {
		return nil
	}
	age := now.Sub(at).Milliseconds()
	return &age
}

// View describes the snapshot and its nodes as they are now.
func (s *Snapshot) View(now time.Time) View {
	v := View{Rev: s.Rev, Stale: s.Stale, Partial: s.Partial, Problems: s.Problems, Nodes: make([]NodeView, 0, len(s.Nodes)), Models: make([]ModelInfo, 0, len(s.models))}
	if s.Stale {
		v.StaleSince = &s.StaleSince
	}
	for _, n := range s.Nodes {
		v.Nodes = append(v.Nodes, n.View(now))
	}
	for _, m := range s.models {
		v.Models = append(v.Models, ModelInfo{Name: m.Name, Aliases: m.Aliases, Nodes: ids(m.Nodes), Prefill: ids(m.Prefill)})
	}
	return v
}

// View describes the node as it is now.
func (n *Node) View(now time.Time) NodeView {
	info, load := n.Info(), n.Load()
	v := NodeView{
		ID: n.ID, Source: n.Source, Address: info.Address, Role: string(info.Role), Engine: info.Engine, Models: info.Models,
		State: n.State().String(), LastError: n.probe.lastError(), Opens: n.Opens(), Version: info.Version,
		InFlight: n.InFlight(), MaxConcurrent: info.MaxConcurrent, Others: load.Others, Waiting: load.Waiting,
		EngineBusy: known(load.EngineBusy), EngineQueue: known(load.EngineQueue),
		SM: known(load.SM), Watts: known(load.Watts), KVUsage: known(load.KVUsage), LoadAgeMs: ageMs(now, load.At), Signals: load.Signals(now), Path: n.Path().View(now),
	}
	v.Eligible, v.Reason = n.Eligible(now)
	switch {
	case v.Reason == noModel:
		v.State, v.Reason = "no model", n.noModels()
	case !v.Eligible:
	case n.Suspect():
		v.Suspect, v.Reason = true, SuspectReason
		why, since := n.Suspicion()
		v.SuspectWhy, v.SuspectMs = why, ageMs(now, since)
	case info.Role == cluster.RolePrefill:
		v.Reason = prefillUnused
	case n.State() == HalfOpen:
		v.Reason = onTrial
	}
	for i := range info.Models {
		if info.Models[i] != info.Upstream[i] {
			v.Upstream = info.Upstream
		}
	}
	return v
}

func ids(nodes []*Node) []string {
	out := make([]string, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, n.ID)
	}
	return out
}

// known is nil for NaN, which JSON cannot say.
func known(v float32) *float64 {
	if math.IsNaN(float64(v)) {
		return nil
	}
	wide := float64(v)
	return &wide
}
