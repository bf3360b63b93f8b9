package agent

import (
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/enginemetrics"
)

// describe is the part of the node's health that never changes.
func (u *unit) describe(id, address string) cluster.NodeHealth {
	return cluster.NodeHealth{
		NodeID: id, Address: address, KVAddress: u.config.Agent.KVAddress,
		Role: cluster.Role(u.Role), Engine: u.Engine.Kind,
		Device: u.device(), GPUIndex: u.gpuIndex(), TP: u.TP, DType: u.DType,
		VRAMBytes: int64(u.VRAM), MaxConcurrent: u.MaxConcurrent,
		Version: buildinfo.Version(),
	}
}

func (u *unit) device() string {
	if u.element != "" && u.Device == "" && len(u.GPUs) > 0 {
		return "gpu"
	}
	return u.Device
}

// gpuIndex is the index of the first GPU; 0 where it is named by a UUID.
func (u *unit) gpuIndex() int {
	if u.element == "" || len(u.GPUs) == 0 {
		return u.config.Agent.GPUIndex
	}
	index, _, _ := strings.Cut(u.GPUs[0], ":")
	n, _ := strconv.Atoi(index)
	return n
}

// health describes the node now. What nobody measures stays unknown.
func (n *node) health() cluster.NodeHealth {
	h, s := n.described, n.engine.State()
	h.Ready, h.Models, h.KVEpoch = n.ready(), s.Models, uint64(s.Epoch)
	if h.MaxConcurrent == 0 {
		h.MaxConcurrent = s.Slots
	}
	if s.Stats.Known(enginemetrics.BlockTokens) {
		h.BlockTokens = int(s.Stats.BlockTokens)
	}
	if s.Stats.Known(enginemetrics.TotalBlocks) {
		h.TotalBlocks = cluster.Known(s.Stats.TotalBlocks)
	}
	if free, known := s.Stats.FreeBlocks(); known {
		h.FreeBlocks = cluster.Known(free)
	}
	now := time.Now()
	var host hostReading
	n.agent.host.read(now, &host)
	n.measure(&h, now, &host)
	h.PowerSource = host.power.Source
	n.agent.host.cpu.percent(now) // for the metric
	if h.VRAMBytes == 0 {
		h.VRAMBytes = gpu.Memory(host.engines[n.index])
	}
	h.Fit()
	return h
}

// inFlight is how many requests are in the engine, and of those waiting.
func (n *node) inFlight() (all, waiting cluster.Gauge) {
	s := n.engine.State()
	// An engine may have other clients. Its figures may be a second old, the front's are of this moment.
	count := float64(n.front.InFlight()) + s.Beyond
	if s.Stats.Known(enginemetrics.Waiting) {
		waiting = cluster.Known(s.Stats.Waiting)
	}
	return cluster.Known(count), waiting
}

// measure fills in what is measured of the node now.
func (n *node) measure(h *cluster.NodeHealth, now time.Time, host *hostReading) {
	r := n.reading(now, host)
	h.InFlight, h.QueueDepth = r.InFlight, r.Queue
	h.CPUPct, h.EngineWaitPct, h.RunqUsP99 = r.CPUPct, r.EngineWaitPct, r.RunqUsP99
	h.SRTTUsP50, h.RetransPPM = r.SRTTUsP50, r.RetransPPM
	h.SMPct, h.PowerWatts, h.PowerWattsAvg30 = r.SMPct, r.Watts, r.WattsAvg30
	h.KernelAgeMs, h.SMAgeMs, h.PowerAgeMs = age(r.At, r.Kernel), age(r.At, r.SM), age(r.At, r.Power)
}

func age(now, at time.Time) cluster.Gauge {
	if at.IsZero() {
		return cluster.Gauge{}
	}
	return cluster.Known(float64(max(now.Sub(at), 0)) / float64(time.Millisecond))
}

// reading is what routers are told of the node's load.
func (n *node) reading(now time.Time, host *hostReading) push.Reading {
	k := n.agent.telemetry.Latest(n.index)
	r := push.Reading{Node: n.id(), At: now, Kernel: k.At, CPUPct: k.CPUPct, EngineWaitPct: k.EngineWaitPct, RunqUsP99: k.RunqUsP99, SRTTUsP50: k.SRTTUsP50, RetransPPM: k.RetransPPM}
	r.InFlight, r.Queue = n.inFlight()
	devices := host.engines[n.index]
	r.SMPct, r.SM = gpu.SMPct(devices), oldest(devices)
	r.Watts, r.WattsAvg30, r.Power = host.watts(n)
	return r
}
