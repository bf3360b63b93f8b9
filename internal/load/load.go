// Package load is how busy a node is: one type, from the agent that measures it to the router that
// picks by it. A figure may be unknown, which is never zero, and has the time of its sample.
//
// A new figure is a field of one of the groups and a row of samples, both in this file, and for one
// of GPUs an element of figures(); a field of NodeLoad in agent.proto; the place that measures it;
// the place that uses it; its row in docs/telemetry.md. Both wire forms, the bounds, the router's
// metrics and the lists of cgn-ctl follow from the row; cgn-ctl top has columns of its own choice.
package load

import (
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Load is the load of a node, as far as it is known. The zero value knows nothing. Figures stand in
// groups, by their source. In JSON all groups are one flat object, and times of samples are ages.
type Load struct {
	Engine
	Kernel
	GPU
	Power
}

// Engine is the figures of the engine and the front before it.
type Engine struct {
	At          Taken `json:"-"`                     // it has no age in JSON: it is of the moment
	InFlight    Gauge `json:"in_flight,omitzero"`    // requests in the engine, running and waiting
	QueueDepth  Gauge `json:"queue_depth,omitzero"`  // of those, waiting
	FreeBlocks  Gauge `json:"free_blocks,omitzero"`  // KV blocks of the engine's own size
	TotalBlocks Gauge `json:"total_blocks,omitzero"` // free and used
	KVUsage     Gauge `json:"kv_usage,omitzero"`     // where blocks are not told: see CacheUsage
}

// Kernel is the figures of the host's kernel on the engine's processes and the front's connections.
type Kernel struct {
	At            Taken `json:"kernel_age_ms,omitzero"`
	CPUPct        Gauge `json:"cpu_pct,omitzero"`         // of the engine's processes; 100 is one CPU
	EngineWaitPct Gauge `json:"engine_wait_pct,omitzero"` // they wait for a CPU; 100: one thread always
	RunqUsP99     Gauge `json:"runq_us_p99,omitzero"`     // wait of the host's threads for a CPU, µs
	SRTTUsP50     Gauge `json:"srtt_us_p50,omitzero"`     // round trip to the front's clients, µs
	RetransPPM    Gauge `json:"retrans_ppm,omitzero"`     // segments sent to them again, in a million
}

// GPU is the figures of the engine's GPUs, by NVML.
type GPU struct {
	At    Taken `json:"sm_age_ms,omitzero"`
	SMPct Gauge `json:"sm_pct,omitzero"` // share of time that SMs were at work, 0 to 100
}

// Power is the node's part of the power that its host draws, all of it where the host has one node.
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

// MaxRequests is the most requests that one engine can be said to have.
const MaxRequests = 1 << 20

// Bounds of other figures, far above anything that is measured.
const (
	mostBlocks = 1e12
	mostPct    = 1e6
	mostUs     = 1e12
	mostWatts  = 1e7
)

// Signal is one figure of a Load.
type Signal struct {
	Name string  // in JSON
	Most float64 // the figure is unknown above it, and below 0

	// Routers are told at once of a move by step, or by share of the old figure if that is more.
	// Without a step a figure is told with others, and once a second.
	step, share float64

	Label string // in the tables of cgn-ctl; empty: it is not in them
	Unit  string // of the figure times Shown
	Shown float64

	Metric string  // of a router, after cgn_router_node_; empty: there is none
	Help   string  // of the metric
	Base   float64 // the metric is the figure divided by it

	gauge func(*Load) *Gauge
	field func(*pb.NodeLoad) **float64 // nil: agents do not tell it
}

// Sample is a group of figures that are taken together.
type Sample struct {
	Name    string // as the router's metrics call it
	Signals []Signal

	at  func(*Load) *Taken
	age func(*pb.NodeLoad) **uint64
}

// gpuSample is the figures of the engine's GPUs. The agent's metrics of nodes and of single GPUs
// follow from it too.
var gpuSample = Sample{
	Name: "sm",
	at:   func(l *Load) *Taken { return &l.GPU.At },
	age:  func(m *pb.NodeLoad) **uint64 { return &m.SmAgeUs },
	Signals: []Signal{
		{
			Name: "sm_pct", Most: 100, step: 1, Label: "sm", Unit: "%", Shown: 1,
			Metric: "sm_ratio", Base: 100,
			Help:  "Share of time that the GPU's multiprocessors were at work, over all of them (GPM).",
			gauge: func(l *Load) *Gauge { return &l.SMPct },
			field: func(m *pb.NodeLoad) **float64 { return &m.SmPct },
		},
	},
}

// samples is every figure of a Load.
var samples = []Sample{
	{
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
				Help:  "Wait for a CPU that 99 % of the waits on the node's host do not exceed; absent while not known.",
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
				Help:  "Share of the TCP segments from the agent's front to its clients that were sent again; absent while not known.",
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

// Samples lists every figure of a Load, by group. The caller must not change it.
func Samples() []Sample { return samples }

// GPUSignals lists the figures of a GPU. The caller must not change it.
func GPUSignals() []Signal { return gpuSample.Signals }

// figures are the gauges of g, in the order of gpuSample.Signals. MeanGPU would allocate a Load if
// it went by the signals. TestGPUFigures holds the two lists to be one.
func (g *GPU) figures() [1]*Gauge { return [...]*Gauge{&g.SMPct} }

// MeanGPU is the load of n GPUs together, each given by of: the mean of each figure, at the time of
// the oldest reading. A figure is unknown where one GPU's is: a mean of some would look like less
// load. It allocates nothing.
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

// In is the figure of l.
func (s *Signal) In(l *Load) Gauge { return *s.gauge(l) }

// At is when the group's figures in l were taken; zero: never.
func (s *Sample) At(l *Load) Taken { return *s.at(l) }

// Running is how many requests the engine computes.
func (e *Engine) Running() Gauge {
	all, allKnown := e.InFlight.Get()
	waiting, waitingKnown := e.QueueDepth.Get()
	if !allKnown || !waitingKnown {
		return Gauge{}
	}
	return Known(max(0, all-waiting))
}

// CacheUsage is the share of the KV cache in use, 0 to 1.
func (e *Engine) CacheUsage() Gauge {
	free, freeKnown := e.FreeBlocks.Get()
	total, totalKnown := e.TotalBlocks.Get()
	if !freeKnown || !totalKnown || total <= 0 {
		return e.KVUsage
	}
	return Known(max(0, 1-free/total))
}

// Drawn is the mean of the last 30 s, or the latest figure where there is no mean.
func (p *Power) Drawn() Gauge {
	if p.WattsAvg30.known {
		return p.WattsAvg30
	}
	return p.Watts
}
