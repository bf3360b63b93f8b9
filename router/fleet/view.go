package fleet

import (
	"cmp"
	"math"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/router/health"
)

// View is a snapshot for people, as /debug/fleet shows it.
type View struct {
	Rev        uint64      `json:"rev"`
	Stale      bool        `json:"stale"`
	StaleSince *time.Time  `json:"stale_since,omitempty"`
	Nodes      []NodeView  `json:"nodes"`
	Models     []ModelInfo `json:"models"`
	Partial    bool        `json:"partial"` // a backend, or etcd, has never named its models
	Problems   []Problem   `json:"problems,omitempty"`
}

// ModelInfo is one model of a View.
type ModelInfo struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Nodes   []string `json:"nodes"`
	Prefill []string `json:"prefill,omitempty"`
	// Base is the model whose LoRA adapter this model is; empty: the model is no adapter.
	Base string `json:"base,omitempty"`
	// Settings are the model's settings in force, from the router's configuration and etcd.
	Settings *cluster.Model `json:"settings,omitempty"`
	Mode     string         `json:"mode,omitempty"` // mode of the model's own policy
}

// NodeView is one node of a View.
type NodeView struct {
	ID       string   `json:"id"`
	Number   uint64   `json:"number"` // names the node too, as a worker id of nvext
	Source   Source   `json:"source"`
	Address  string   `json:"address"`
	Role     string   `json:"role"`
	Engine   string   `json:"engine,omitempty"`
	Models   []string `json:"models"`
	Upstream []string `json:"upstream_models,omitempty"` // set where the engine uses another name
	Labels   []string `json:"labels,omitempty"`
	Experts  []string `json:"experts,omitempty"`
	Version  string   `json:"version,omitempty"`

	// Connector is the connector in force for the node's own role, or else the stated one.
	Connector string `json:"connector,omitempty"`
	Bootstrap string `json:"bootstrap,omitempty"` // host:port of its bootstrap server

	EngineVersion    string `json:"engine_version,omitempty"`
	MaxBatchedTokens int    `json:"max_batched_tokens,omitempty"`
	// Adapters are the LoRA adapters that the engine lists, or has loaded at their first request.
	Adapters     []AdapterView `json:"adapters,omitempty"`
	AdapterSlots int           `json:"adapter_slots,omitempty"` // adapters that the engine can use at once
	Standing

	InFlight      int32 `json:"in_flight"`
	MaxConcurrent int32 `json:"max_concurrent,omitempty"` // no limit when absent
	EngineSlots   int32 `json:"engine_slots,omitempty"`
	Others        int32 `json:"in_flight_of_others"` // requests in the engine of other routers and clients
	Waiting       int32 `json:"waiting_of_others"`

	Ranks []RankView `json:"ranks,omitempty"` // of a node with several data-parallel ranks

	Signals Signals `json:"signals"`
	Path    *PathOf `json:"path,omitempty"` // of the router's connections to the node, from the router's kernel
}

// AdapterView is a LoRA adapter of a node.
type AdapterView struct {
	Name   string `json:"name"`
	Base   string `json:"base"`
	Loaded *bool  `json:"loaded,omitempty"`  // absent: unknown
	IdleMs *int64 `json:"idle_ms,omitempty"` // milliseconds since its last known use
}

// views returns the adapters for people. An adapter that the engine neither lists nor has used is
// left out.
func views(states []lora.State, now time.Time) (all []AdapterView) {
	for _, s := range states {
		if !s.Listed && s.Used.IsZero() {
			continue
		}
		v := AdapterView{Name: s.Name, Base: s.Base, IdleMs: ageMs(now, s.Used)}
		if s.Known {
			v.Loaded = new(s.Loaded)
		}
		all = append(all, v)
	}
	return all
}

// RankView is one data-parallel rank of a NodeView.
type RankView struct {
	Rank         int     `json:"dp_rank"`
	InFlight     int32   `json:"in_flight"`
	Others       int32   `json:"in_flight_of_others"`
	Waiting      int32   `json:"waiting_of_others"`
	OwnPrefill   int64   `json:"prefill_tokens"` // tokens of this router's requests, not computed yet
	ActiveBlocks float64 `json:"active_blocks"`  // of this router's requests
}

// View describes the rank at now.
func (r *Rank) View(now time.Time) RankView {
	l := r.Load()
	return RankView{
		Rank: r.Index, InFlight: r.InFlight(), Others: l.Others, Waiting: l.Waiting,
		OwnPrefill: r.Book.Prefill(now), ActiveBlocks: r.Book.Blocks(),
	}
}

// These are the states of a Standing that programs test for.
const (
	Healthy = health.Healthy
	Open    = health.Open
	Aside   = health.Aside
)

// Standing says whether a node takes requests, and why not.
type Standing struct {
	State      string `json:"state"` // the breaker's state, or "no model"
	Eligible   bool   `json:"eligible"`
	Suspect    bool   `json:"suspect"`               // packets to the node are not acknowledged
	SuspectWhy string `json:"suspect_why,omitempty"` // the evidence
	SuspectMs  *int64 `json:"suspect_ms,omitempty"`  // milliseconds since the node became suspect
	Reason     string `json:"reason,omitempty"`      // why the node takes no requests, or few
	LastError  string `json:"last_error,omitempty"`
	Opens      uint64 `json:"breaker_opens"`
}

// Signals is a node's latest load. The JSON names the figures as the heartbeat in etcd does and
// adds the ages of their samples. The JSON leaves out unknown figures.
type Signals struct {
	From      Origin     `json:"from"`
	EngineAge load.Taken `json:"engine_age_ms,omitzero"` // age of in_flight, queue_depth and blocks
	load.Load
}

// PathOf is a Path in milliseconds.
type PathOf struct {
	RTTMs         *float64 `json:"rtt_ms,omitempty"`
	RTTMinMs      *float64 `json:"rtt_min_ms,omitempty"`
	RTTAgeMs      *int64   `json:"rtt_age_ms,omitempty"`    // age of the latest measurement
	Retransmitted *float64 `json:"retransmitted,omitempty"` // retransmitted share of the segments of the last 10 to 20 s
	Segments      uint64   `json:"segments"`
	Retransmits   uint64   `json:"retransmits"`
	Timeouts      uint64   `json:"retransmission_timeouts"`
	Resets        uint64   `json:"resets"`
	Failed        uint64   `json:"failed_connects"`
	AgeMs         int64    `json:"age_ms"`
}

// View describes the path at now. View returns nil for a nil path.
func (p *Path) View(now time.Time) *PathOf {
	if p == nil {
		return nil
	}
	v := &PathOf{
		Retransmitted: known(p.Share), Segments: p.Segments, Retransmits: p.Retransmits,
		Timeouts: p.Timeouts, Resets: p.Resets, Failed: p.Failed,
		AgeMs: now.Sub(p.At).Milliseconds(),
	}
	if p.RTT > 0 {
		v.RTTMs, v.RTTMinMs, v.RTTAgeMs = ms(p.RTT), ms(p.RTTMin), ageMs(now, p.RTTAt)
	}
	return v
}

func ms(d time.Duration) *float64 {
	return new(float64(d) / float64(time.Millisecond))
}

// Signals describes the load for people.
func (l *Load) Signals() Signals {
	return Signals{From: l.From, EngineAge: l.Engine.At, Load: l.Load}
}

// ageMs returns nil for a zero time.
func ageMs(now, at time.Time) *int64 {
	if at.IsZero() {
		return nil
	}
	return new(now.Sub(at).Milliseconds())
}

// View describes the snapshot and its nodes at now.
func (s *Snapshot) View(now time.Time) View {
	v := View{Rev: s.Rev, Stale: s.Stale, Partial: s.Partial, Problems: s.Problems,
		Nodes: make([]NodeView, 0, len(s.Nodes)), Models: make([]ModelInfo, 0, len(s.models))}
	if s.Stale {
		v.StaleSince = &s.StaleSince
	}
	for _, n := range s.Nodes {
		answers := n.Info().Role == cluster.RolePrefill && s.answers(n)
		v.Nodes = append(v.Nodes, n.view(now, answers))
	}
	for _, m := range s.models {
		v.Models = append(v.Models, m.info())
	}
	return v
}

func (m *ModelView) info() ModelInfo {
	i := ModelInfo{Name: m.Name, Aliases: m.Aliases, Nodes: ids(m.Nodes), Prefill: ids(m.Prefill), Settings: m.Settings}
	if m.Base != nil {
		i.Base = m.Base.Name
	}
	if m.Policy != nil {
		i.Mode = m.Policy.Mode.String()
	}
	return i
}

// View describes the node at now.
func (n *Node) View(now time.Time) NodeView { return n.view(now, false) }

// view describes the node at now. answers says that a model's settings let the node answer requests
// although its role is prefill.
func (n *Node) view(now time.Time, answers bool) NodeView {
	info, l := n.Info(), n.Load()
	v := NodeView{
		ID: n.ID, Number: n.Number(), Source: n.Source, Address: info.Address, Role: string(info.Role),
		Engine: info.Engine, Models: info.Models, Labels: info.Labels, EngineVersion: info.EngineVersion,
		Experts: info.Experts, MaxBatchedTokens: info.MaxBatchedTokens,
		Standing: Standing{State: n.Health.State().String(), LastError: n.Health.LastError(), Opens: n.Health.Opens()},
		InFlight: n.InFlight(), MaxConcurrent: info.MaxConcurrent, EngineSlots: info.EngineSlots,
		Others: l.Others, Waiting: l.Waiting, Signals: l.Signals(), Path: n.Path().View(now), Version: info.Version,
		Adapters: views(n.adapters.States(), now), AdapterSlots: n.adapters.Slots(),
	}
	if v.Connector = cmp.Or(info.Hands(info.Role), info.Connector); v.Connector != "" {
		v.Bootstrap = info.Bootstrap
	}
	v.Eligible, v.Reason = n.Eligible(now)
	switch {
	case v.Reason == noModel:
		v.State, v.Reason = "no model", n.noModels()
	case !v.Eligible:
	case n.Health.Suspect():
		v.Suspect, v.Reason = true, health.SuspectReason
		why, since := n.Health.Suspicion()
		v.SuspectWhy, v.SuspectMs = why, ageMs(now, since)
	case info.Role == cluster.RolePrefill && !answers && info.Hands(info.Role) == "":
		v.Reason = prefillUnused
	case n.Health.State() == health.HalfOpen:
		v.Reason = health.OnTrial
	}
	if ranks := n.Ranks(); len(ranks) > 1 {
		for _, r := range ranks {
			v.Ranks = append(v.Ranks, r.View(now))
		}
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

// known returns nil for NaN, because JSON has no NaN.
func known(v float32) *float64 {
	if math.IsNaN(float64(v)) {
		return nil
	}
	return new(float64(v))
}
