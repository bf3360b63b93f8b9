package agent

import (
	"time"

	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/metric"
)

// Indexes of kernelDefs.
const (
	kernelSource = iota
	kernelMissing
	kernelLooks
	kernelLookCPU
	kernelAge
	kernelEngineCPU
	kernelEngineCPURatio
	kernelEngineDelay
	kernelDelayP99
	kernelRTT
	kernelRetrans
	kernelConnections
	kernelOpened
	kernelResets
	kernelRetransmits
	kernelSegments
	kernelTimeouts
	kernelStalls
	kernelUnmeasured
	kernelDrops
	pushFollowers
	pushSent
	pushCoalesced
	pushRefused
)

var kernelDefs = []metric.Def{
	kernelSource:         {Name: "cgn_agent_telemetry_source", Labels: []string{"source"}, Help: "1 for where the kernel's figures come from: bpf, proc or none."},
	kernelMissing:        {Name: "cgn_agent_telemetry_missing", Labels: []string{"what"}, Help: "1 for each figure that the agent cannot tell now, with its node if there are several engines; /readyz says why."},
	kernelLooks:          {Name: "cgn_agent_telemetry_looks_total", Kind: metric.Counter, Help: "Looks at the kernel's figures."},
	kernelLookCPU:        {Name: "cgn_agent_telemetry_cpu_seconds_total", Kind: metric.Counter, Help: "CPU time of the looks at the kernel's figures."},
	kernelAge:            {Name: "cgn_agent_telemetry_age_seconds", Help: "Time since the last look at the kernel's figures; absent before the first look."},
	kernelEngineCPU:      {Name: "cgn_agent_engine_cpu_seconds_total", Kind: metric.Counter, Labels: ofNode, Help: "CPU time of the engine's processes since they are watched; absent while they are not known."},
	kernelEngineCPURatio: {Name: "cgn_agent_engine_cpu_ratio", Labels: ofNode, Help: "CPUs that the engine's processes used in the last second."},
	kernelEngineDelay:    {Name: "cgn_agent_engine_run_delay_seconds_total", Kind: metric.Counter, Labels: ofNode, Help: "Time that threads of the engine's processes waited for a CPU."},
	kernelDelayP99:       {Name: "cgn_agent_run_delay_p99_seconds", Help: "Wait for a CPU that 99 % of the host's wakeups in the last second did not exceed; absent without BPF programs."},
	kernelRTT:            {Name: "cgn_agent_rtt_p50_seconds", Labels: ofNode, Help: "Median of the smoothed round trips to the front's clients in the last 10 s; absent while there are none."},
	kernelRetrans:        {Name: "cgn_agent_retransmitted_ratio", Labels: ofNode, Help: "Share of the segments sent to the front's clients in the last 10 s that were sent again; absent while no segment is sent."},
	kernelConnections:    {Name: "cgn_agent_connections", Labels: []string{"node", "side"}, Help: "Established connections to the front and to the engine."},
	kernelOpened:         {Name: "cgn_agent_connections_opened_total", Kind: metric.Counter, Labels: []string{"node", "side"}, Help: "Connections to the front and to the engine since the BPF programs watch their ports; absent without BPF programs, and counted on when the agent restarts."},
	kernelResets:         {Name: "cgn_agent_connections_reset_total", Kind: metric.Counter, Labels: []string{"node", "side"}, Help: "Connections to the front and to the engine that the other side reset; absent without BPF programs."},
	kernelRetransmits:    {Name: "cgn_agent_retransmits_total", Kind: metric.Counter, Labels: []string{"node", "side"}, Help: "TCP segments that the host sent again on connections to the front and to the engine; absent without BPF programs."},
	kernelSegments:       {Name: "cgn_agent_segments_sent_total", Kind: metric.Counter, Labels: []string{"node", "side"}, Help: "TCP segments with payload that the host sent on connections to the front and to the engine, repeated ones included; absent without BPF programs."},
	kernelTimeouts:       {Name: "cgn_agent_retransmission_timeouts_total", Kind: metric.Counter, Labels: []string{"node", "side"}, Help: "Retransmission timeouts of connections to the front and to the engine; absent without BPF programs."},
	kernelStalls:         {Name: "cgn_agent_stalls_total", Kind: metric.Counter, Labels: []string{"node", "side", "direction"}, Help: "Times that a TCP window became zero: the other side took no more (send), or the program did not read (receive); absent without BPF programs."},
	kernelUnmeasured:     {Name: "cgn_agent_kernel_unmeasured_total", Kind: metric.Counter, Labels: []string{"node", "why"}, Help: "Traffic that cgn_agent_kernel_ttft_seconds and cgn_agent_kernel_itl_seconds leave out: connections of tls, http2 or other protocols; answers of one or two pieces, or large ones (single); streams whose first token looks like their head (unclear, they are in itl); pieces of several tokens (coalesced)."},
	kernelDrops:          {Name: "cgn_agent_kernel_drops_total", Kind: metric.Counter, Labels: []string{"what"}, Help: "Events that the BPF programs could not count, by the table or ring that was full."},
	pushFollowers:        {Name: "cgn_agent_push_routers", Help: "Routers that follow the load of the agent's nodes, on a stream each."},
	pushSent:             {Name: "cgn_agent_push_sent_total", Kind: metric.Counter, Help: "Answers on load sent to routers, each with a reading of every node."},
	pushCoalesced:        {Name: "cgn_agent_push_coalesced_total", Kind: metric.Counter, Help: "Answers on load that a later one replaced before they were sent: more than 25 a second, or a slow router."},
	pushRefused:          {Name: "cgn_agent_push_refused_total", Kind: metric.Counter, Help: "Routers turned away because 64 routers follow the agent's load already."},
}

// Indexes of kernelHistograms.
const (
	histogramDelay = iota
	histogramTTFT
	histogramITL
)

var kernelHistograms = []metric.Def{
	histogramDelay: {Name: "cgn_agent_run_delay_seconds", Help: "How long threads of the host waited for a CPU; absent without BPF programs."},
	histogramTTFT:  {Name: "cgn_agent_kernel_ttft_seconds", Labels: ofNode, Help: "Time from a request's first byte to the first token of its streamed answer, as the kernel sees them on the engine's port; absent without BPF programs, and counted on when the agent restarts."},
	histogramITL:   {Name: "cgn_agent_kernel_itl_seconds", Labels: ofNode, Help: "Gaps between the tokens of the engine's streamed answers, as the kernel sees them on the engine's port; absent without BPF programs."},
}

type emit = func(def int, value float64, labels ...string)

// emitAll emits the values of consecutive metrics with the same labels.
func emitAll(emit emit, first int, values []float64, labels ...string) {
	for i, v := range values {
		emit(first+i, v, labels...)
	}
}

// watchKernel makes the kernel's figures readable at each scrape. A nil agent only defines the
// metrics.
func (in *instruments) watchKernel(a *Agent) {
	in.set.Read(kernelDefs, func(emit emit) {
		if a != nil {
			a.emitTelemetry(emit)
			a.emitPush(emit)
		}
	})
	in.set.ReadHistograms(kernelHistograms,
		func(emit func(def int, count uint64, sum float64, buckets map[float64]uint64, labels ...string)) {
			if a == nil {
				return
			}
			a.telemetry.With(func(r bpf.Reader, _ telemetry.Engines) { a.emitHistograms(emit, r) })
		})
}

// emitHistograms emits the histograms, which only BPF programs measure.
func (a *Agent) emitHistograms(emit func(def int, count uint64, sum float64, buckets map[float64]uint64,
	labels ...string), r bpf.Reader) {
	if r.Source() != bpf.SourceBPF {
		return
	}
	one := func(def int, h bpf.Histogram, labels ...string) {
		if h.Count > 0 {
			emit(def, h.Count, h.Sum.Seconds(), cumulative(h), labels...)
		}
	}
	var h bpf.Histogram
	if err := r.RunDelay(&h); err == nil {
		one(histogramDelay, h)
	}
	for _, n := range a.nodes {
		if _, port := a.telemetry.Ports(n.index); port != 0 {
			if t, err := r.Tokens(port); err == nil {
				one(histogramTTFT, t.TTFT, n.id())
				one(histogramITL, t.ITL, n.id())
			}
		}
	}
}

func (a *Agent) emitTelemetry(emit emit) {
	looks, cpu := a.telemetry.Cost()
	emitAll(emit, kernelLooks, []float64{float64(looks), cpu.Seconds()})
	seen := map[string]bool{}
	for _, m := range a.telemetry.Missing() {
		if !seen[m.What] {
			emit(kernelMissing, 1, m.What)
		}
		seen[m.What] = true
	}
	if !a.telemetry.With(func(r bpf.Reader, engines telemetry.Engines) { a.emitRead(emit, r, engines) }) {
		emit(kernelSource, 1, "none")
	}
}

// emitRead emits the figures that are read in the kernel, and those derived from them.
func (a *Agent) emitRead(emit emit, r bpf.Reader, engines telemetry.Engines) {
	emit(kernelSource, 1, string(r.Source()))
	host := a.telemetry.Latest(0)
	if !host.At.IsZero() {
		emit(kernelAge, time.Since(host.At.Time).Seconds())
	}
	emitGauge(emit, kernelDelayP99, host.RunqUsP99, 1e6)
	if d, err := r.Drops(); err == nil && r.Source() == bpf.SourceBPF {
		for what, n := range map[string]uint64{"events": d.Events, "peers": d.Peers, "sockets": d.Sockets,
			"processes": d.Processes, "threads": d.Threads, "odd packets": d.OddPackets} {
			emit(kernelDrops, float64(n), what)
		}
	}
	for _, n := range a.nodes {
		n.emitKernel(emit, r, engines)
	}
}

// emitKernel emits the kernel's figures for the node's engine and ports.
func (n *node) emitKernel(emit emit, r bpf.Reader, engines telemetry.Engines) {
	t, id := n.agent.telemetry, n.id()
	sample := t.Latest(n.index)
	emitGauge(emit, kernelEngineCPURatio, sample.CPUPct, 100, id)
	emitGauge(emit, kernelRTT, sample.SRTTUsP50, 1e6, id)
	emitGauge(emit, kernelRetrans, sample.RetransPPM, 1e6, id)
	if g, ok := engines(n.index); ok {
		emit(kernelEngineCPU, g.CPU.Seconds(), id)
		emit(kernelEngineDelay, g.Delay.Seconds(), id)
	}
	front, engine := t.Ports(n.index)
	emitPort(emit, r, front, id, "front")
	emitPort(emit, r, engine, id, "engine")
	if r.Source() != bpf.SourceBPF {
		return
	}
	if t, err := r.Tokens(engine); err == nil {
		for why, n := range map[string]uint64{"tls": t.UnmeasuredTLS, "http2": t.UnmeasuredHTTP, "other": t.Unmeasured,
			"single": t.Singles, "unclear": t.Unclear, "coalesced": t.Coalesced} {
			emit(kernelUnmeasured, float64(n), id, why)
		}
	}
}

func emitPort(emit emit, r bpf.Reader, port uint16, id, side string) {
	if port == 0 {
		return // the port is unknown, or belongs to another host
	}
	p, err := r.Port(port)
	if err != nil {
		return
	}
	emit(kernelConnections, float64(p.Established), id, side)
	if r.Source() != bpf.SourceBPF {
		return // the counts cover only connections that are open now
	}
	emitAll(emit, kernelOpened, []float64{float64(p.Opened), float64(p.Resets), float64(p.Retransmits),
		float64(p.SegmentsSent), float64(p.Timeouts)}, id, side)
	emit(kernelStalls, float64(p.StallsSend), id, side, "send")
	emit(kernelStalls, float64(p.StallsReceive), id, side, "receive")
}

func (a *Agent) emitPush(emit emit) {
	if a.push == nil {
		return
	}
	s := a.push.Stats()
	emitAll(emit, pushFollowers, []float64{float64(s.Followers), float64(s.Sent), float64(s.Coalesced),
		float64(s.Refused)})
}

// perBound is how many of the kernel's buckets make one exported bucket. The kernel has 16 buckets
// for each power of two; two are exported.
const perBound = 8

// cumulative returns how many values lie below each bound, in seconds. The last bucket has no
// bound, because it also holds all longer values.
func cumulative(h bpf.Histogram) map[float64]uint64 {
	all, below := map[float64]uint64{}, uint64(0)
	for i, n := range h.Buckets {
		below += n
		if i%perBound == perBound-1 && i != len(h.Buckets)-1 {
			_, upper := bpf.Bounds(i)
			all[upper.Seconds()] = below
		}
	}
	return all
}
