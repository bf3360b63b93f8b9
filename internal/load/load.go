// Package load describes how busy a node is, with one type from the agent that measures it to the
// router that uses it to pick. A figure may be unknown, which differs from zero. A figure has the
// time of its sample.
//
// To add a figure, add a field to one of the groups and a row to samples, both in this file; for a
// GPU figure also an element of figures(). Then add a field to NodeLoad in agent.proto, the code
// that measures the figure, the code that uses it, and its row in docs/telemetry.md. Both wire
// forms, the bounds, the router's metrics and the lists of cgn-ctl follow from the row. cgn-ctl top
// has its own choice of columns.
package load

import (
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Load is the known load of a node. In the zero value everything is unknown. Figures are in groups,
// by their source. In JSON all groups form one flat object, and times of samples are ages.
type Load struct {
	Engine
	Kernel
	GPU
	Power
}

// Engine holds the figures of the engine and of the front before it.
type Engine struct {
	At          Taken `json:"-"`                     // not in JSON, because these figures are always current
	InFlight    Gauge `json:"in_flight,omitzero"`    // requests in the engine, running and waiting
	QueueDepth  Gauge `json:"queue_depth,omitzero"`  // those of InFlight that wait
	FreeBlocks  Gauge `json:"free_blocks,omitzero"`  // free KV blocks, of the engine's own size
	TotalBlocks Gauge `json:"total_blocks,omitzero"` // all KV blocks, free and used
	KVUsage     Gauge `json:"kv_usage,omitzero"`     // used if blocks are unknown; see CacheUsage
	// Ranks are the parts of the engine's data-parallel ranks, at most MaxRanks; nil: the engine
	// has one rank, or the parts are unknown. The ranks must not change once a Load has them.
	Ranks []Rank `json:"ranks,omitempty"`
}

// MaxRanks is the largest number of data-parallel ranks of an engine.
const MaxRanks = 64

// Rank holds the figures of one data-parallel rank of an engine. Each rank has a queue and KV
// blocks of its own.
type Rank struct {
	InFlight    Gauge `json:"in_flight,omitzero"`
	QueueDepth  Gauge `json:"queue_depth,omitzero"`
	FreeBlocks  Gauge `json:"free_blocks,omitzero"`
	TotalBlocks Gauge `json:"total_blocks,omitzero"`
	KVUsage     Gauge `json:"kv_usage,omitzero"`
}

// figures returns the gauges of r, in the order of the engine's sample. TestRankFigures checks that
// both lists are equal.
func (r *Rank) figures() [5]*Gauge {
	return [...]*Gauge{&r.InFlight, &r.QueueDepth, &r.FreeBlocks, &r.TotalBlocks, &r.KVUsage}
}

// Rank returns the part of the engine's data-parallel rank i among n ranks. Without figures of the
// ranks, the part is an n-th of the engine's figures.
func (e *Engine) Rank(i, n int) Engine {
	if len(e.Ranks) == n {
		r := &e.Ranks[i]
		return Engine{
			At: e.At, InFlight: r.InFlight, QueueDepth: r.QueueDepth, FreeBlocks: r.FreeBlocks,
			TotalBlocks: r.TotalBlocks, KVUsage: r.KVUsage,
		}
	}
	return Engine{
		At: e.At, InFlight: e.InFlight.over(n), QueueDepth: e.QueueDepth.over(n), FreeBlocks: e.FreeBlocks.over(n),
		TotalBlocks: e.TotalBlocks.over(n), KVUsage: e.KVUsage,
	}
}

// Kernel holds the figures of the host's kernel about the engine's processes and the front's
// connections.
type Kernel struct {
	At            Taken `json:"kernel_age_ms,omitzero"`
	CPUPct        Gauge `json:"cpu_pct,omitzero"`         // CPU time of the engine's processes; 100 is one CPU
	EngineWaitPct Gauge `json:"engine_wait_pct,omitzero"` // time that they wait for a CPU; 100: one thread always waits
	RunqUsP99     Gauge `json:"runq_us_p99,omitzero"`     // wait of the host's threads for a CPU, µs
	SRTTUsP50     Gauge `json:"srtt_us_p50,omitzero"`     // round trip to the front's clients, µs
	RetransPPM    Gauge `json:"retrans_ppm,omitzero"`     // segments retransmitted to these clients, in a million
}

// GPU holds the figures of the engine's GPUs, by NVML.
type GPU struct {
	At    Taken `json:"sm_age_ms,omitzero"`
	SMPct Gauge `json:"sm_pct,omitzero"` // share of time with working SMs, 0 to 100
}

// Power is the node's part of its host's power. The part is the whole power if the host has one
// node.
type Power struct {
	At         Taken `json:"power_age_ms,omitzero"`
	Watts      Gauge `json:"power_watts,omitzero"`
	WattsAvg30 Gauge `json:"power_watts_avg30,omitzero"` // mean of the last 30 s
}

// Reading is the load of one node.
type Reading struct {
	Node string
	Load Load
}

// MaxRequests is the largest allowed number of requests of one engine.
const MaxRequests = 1 << 20

// Bounds of other figures, far above real values.
const (
	mostBlocks = 1e12
	mostPct    = 1e6
	mostUs     = 1e12
	mostWatts  = 1e7
)

// Signal describes one figure of a Load.
type Signal struct {
	Name string  // name in JSON
	Most float64 // upper bound: a figure above it, or below 0, is unknown

	// Routers are told immediately of a change by step, or by share of the old figure if that is
	// more. A figure without a step is sent along with others, and once a second.
	step, share float64

	Label string // name in the tables of cgn-ctl; empty: not shown
	Unit  string // unit of the figure times Shown
	Shown float64

	Metric string  // the router's metric is cgn_router_node_ plus Metric; empty: none
	Help   string  // help text of the metric
	Base   float64 // the metric is the figure divided by Base

	gauge func(*Load) *Gauge
	field func(*pb.NodeLoad) **float64 // nil: agents do not send it
}

// Sample is a group of figures that are measured together.
type Sample struct {
	Name    string // its label in the router's metrics
	Signals []Signal

	at  func(*Load) *Taken
	age func(*pb.NodeLoad) **uint64
}

// gpuSample describes the figures of the engine's GPUs. The agent's metrics of nodes and of single
// GPUs follow from gpuSample too.
var gpuSample = Sample{
	Name: "sm",
	at:   func(l *Load) *Taken { return &l.GPU.At },
	age:  func(m *pb.NodeLoad) **uint64 { return &m.SmAgeUs },
	Signals: []Signal{
		{
			Name: "sm_pct", Most: 100, step: 1, Label: "sm", Unit: "%", Shown: 1,
			Metric: "sm_ratio", Base: 100,
			Help:  "Share of time in which the GPU's multiprocessors were at work, averaged over them (NVML's GPM).",
			gauge: func(l *Load) *Gauge { return &l.SMPct },
			field: func(m *pb.NodeLoad) **float64 { return &m.SmPct },
		},
	},
}

// engineSample is the index in samples of the engine's figures.
const engineSample = 0

// samples describes every figure of a Load.
var samples = []Sample{
	engineSample: {
		Name: "engine",
		at:   func(l *Load) *Taken { return &l.Engine.At },
		age:  func(m *pb.NodeLoad) **uint64 { return &m.EngineAgeUs },
		Signals: []Signal{
			{
				Name: "in_flight", Most: MaxRequests, step: 1, share: 0.02,
				gauge: func(l *Load) *Gauge { return &l.InFlight },
				field: func(m *pb.NodeLoad) **float64 { return &m.InFlight },
			}, {
				Name: "queue_depth", Most: MaxRequests, step: 1, share: 0.02,
				gauge: func(l *Load) *Gauge { return &l.QueueDepth },
				field: func(m *pb.NodeLoad) **float64 { return &m.QueueDepth },
			}, {
				Name: "free_blocks", Most: mostBlocks,
				gauge: func(l *Load) *Gauge { return &l.FreeBlocks },
				field: func(m *pb.NodeLoad) **float64 { return &m.FreeBlocks },
			}, {
				Name: "total_blocks", Most: mostBlocks,
				gauge: func(l *Load) *Gauge { return &l.TotalBlocks },
				field: func(m *pb.NodeLoad) **float64 { return &m.TotalBlocks },
			}, {
				Name: "kv_usage", Most: 1,
				gauge: func(l *Load) *Gauge { return &l.KVUsage },
			},
		},
	}, {
		Name: "kernel",
		at:   func(l *Load) *Taken { return &l.Kernel.At },
		age:  func(m *pb.NodeLoad) **uint64 { return &m.KernelAgeUs },
		Signals: []Signal{
			{
				Name: "cpu_pct", Most: mostPct, step: 5, share: 0.05, Label: "cpu", Unit: "%", Shown: 1,
				Metric: "cpu_ratio", Base: 100,
				Help:  "CPUs that the engine's processes use; absent while not known.",
				gauge: func(l *Load) *Gauge { return &l.CPUPct },
				field: func(m *pb.NodeLoad) **float64 { return &m.CpuPct },
			}, {
				Name: "engine_wait_pct", Most: mostPct, step: 5, share: 0.2, Label: "starved", Unit: "%", Shown: 1,
				Metric: "engine_wait_ratio", Base: 100,
				Help:  "Threads of the engine's processes that wait for a CPU, on average; absent while not known.",
				gauge: func(l *Load) *Gauge { return &l.EngineWaitPct },
				field: func(m *pb.NodeLoad) **float64 { return &m.EngineWaitPct },
			}, {
				Name: "runq_us_p99", Most: mostUs, step: 100, share: 0.2, Label: "wait", Unit: "ms", Shown: 1e-3,
				Metric: "run_delay_p99_seconds", Base: 1e6,
				Help: "Wait for a CPU that 99 % of the waits on the node's host do not exceed; absent while " +
					"not known.",
				gauge: func(l *Load) *Gauge { return &l.RunqUsP99 },
				field: func(m *pb.NodeLoad) **float64 { return &m.RunqUsP99 },
			}, {
				Name: "srtt_us_p50", Most: mostUs, step: 50, share: 0.1, Label: "rtt", Unit: "ms", Shown: 1e-3,
				Metric: "rtt_p50_seconds", Base: 1e6,
				Help:  "Median of the round trips between the agent's front and its clients; absent while not known.",
				gauge: func(l *Load) *Gauge { return &l.SRTTUsP50 },
				field: func(m *pb.NodeLoad) **float64 { return &m.SrttUsP50 },
			}, {
				Name: "retrans_ppm", Most: 1e6, step: 100, share: 0.2, Label: "resent", Unit: "ppm", Shown: 1,
				Metric: "retransmitted_ratio", Base: 1e6,
				Help: "Share of the TCP segments from the agent's front to its clients that were sent again; absent " +
					"while not known.",
				gauge: func(l *Load) *Gauge { return &l.RetransPPM },
				field: func(m *pb.NodeLoad) **float64 { return &m.RetransPpm },
			},
		},
	}, gpuSample, {
		Name: "watts",
		at:   func(l *Load) *Taken { return &l.Power.At },
		age:  func(m *pb.NodeLoad) **uint64 { return &m.PowerAgeUs },
		Signals: []Signal{
			{
				Name: "power_watts", Most: mostWatts, step: 2, share: 0.02, Label: "now", Unit: " W", Shown: 1,
				gauge: func(l *Load) *Gauge { return &l.Watts },
				field: func(m *pb.NodeLoad) **float64 { return &m.PowerWatts },
			}, {
				Name: "power_watts_avg30", Most: mostWatts, step: 2, share: 0.02, Label: "30 s", Unit: " W", Shown: 1,
				gauge: func(l *Load) *Gauge { return &l.WattsAvg30 },
				field: func(m *pb.NodeLoad) **float64 { return &m.PowerWattsAvg30 },
			},
		},
	},
}

// Samples returns the descriptions of all figures of a Load, by group. The caller must not change
// the slice.
func Samples() []Sample { return samples }

// GPUSignals returns the descriptions of a GPU's figures. The caller must not change the slice.
func GPUSignals() []Signal { return gpuSample.Signals }

// Rank returns the part of one of n data-parallel ranks of the node's engine.
func (p *Power) Rank(n int) Power {
	return Power{At: p.At, Watts: p.Watts.over(n), WattsAvg30: p.WattsAvg30.over(n)}
}

// figures returns the gauges of g, in the order of gpuSample.Signals. MeanGPU uses figures, because
// MeanGPU would have to allocate a Load to use gpuSample.Signals. TestGPUFigures checks that both
// lists are equal.
func (g *GPU) figures() [1]*Gauge { return [...]*Gauge{&g.SMPct} }

// MeanGPU returns the load of n GPUs together: the mean of each figure, at the time of the oldest
// reading. of returns each GPU. A figure is unknown if one GPU's is, because a mean of the others
// would look like less load. MeanGPU allocates nothing.
func MeanGPU(n int, of func(i int) *GPU) (mean GPU) {
	for i := range n {
		g := of(i)
		if i == 0 {
			mean = *g
			continue
		}
		if g.At.Before(mean.At.Time) {
			mean.At = g.At
		}
		sums := mean.figures()
		for k, figure := range g.figures() {
			if figure.known && sums[k].known {
				sums[k].value += figure.value
			} else {
				*sums[k] = Gauge{}
			}
		}
	}
	for _, sum := range mean.figures() {
		sum.value /= float64(max(n, 1))
	}
	return mean
}

// In returns the figure in l.
func (s *Signal) In(l *Load) Gauge { return *s.gauge(l) }

// At returns when the group's figures in l were sampled; zero: never.
func (s *Sample) At(l *Load) Taken { return *s.at(l) }

// CacheUsage returns the used share of the KV cache, 0 to 1.
func (e *Engine) CacheUsage() Gauge {
	free, freeKnown := e.FreeBlocks.Get()
	total, totalKnown := e.TotalBlocks.Get()
	if !freeKnown || !totalKnown || total <= 0 {
		return e.KVUsage
	}
	return Known(max(0, 1-free/total))
}

// Drawn returns the mean of the last 30 s, or the latest figure if there is no mean.
func (p *Power) Drawn() Gauge {
	if p.WattsAvg30.known {
		return p.WattsAvg30
	}
	return p.Watts
}
