package agent

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/load"
)

// describe returns the part of the node's health that never changes.
func (u *unit) describe(id, address string) cluster.NodeHealth {
	connector, bootstrap := u.Engine.Handover(u.Role)
	return cluster.NodeHealth{
		NodeID: id, Address: address, KVAddress: u.config.Agent.KVAddress,
		Role: cluster.Role(u.Role), Engine: u.Engine.Kind, Labels: u.Labels, Experts: u.Experts,
		Hardware: cluster.Hardware{
			Device: u.device(), GPUIndex: u.gpuIndex(), TP: u.TP, DataParallel: u.DataParallel,
			DType: u.DType, VRAMBytes: int64(u.VRAM),
		},
		Connector: connector, Bootstrap: bootstrap,
		MaxConcurrent: u.MaxConcurrent, MaxBatchedTokens: u.MaxBatched,
		HeartbeatS: u.config.Agent.Heartbeat.Std().Seconds(),
		Version:    buildinfo.Version(),
	}
}

func (u *unit) device() string {
	if u.element != "" && u.Device == "" && len(u.GPUs) > 0 {
		return "gpu"
	}
	return u.Device
}

// gpuIndex returns the index of the first GPU; 0 if the GPU is named by a UUID.
func (u *unit) gpuIndex() int {
	if u.element == "" || len(u.GPUs) == 0 {
		return u.config.Agent.GPUIndex
	}
	index, _, _ := strings.Cut(u.GPUs[0], ":")
	n, _ := strconv.Atoi(index)
	return n
}

// health returns the node's present health. Figures without a measurement stay unknown.
func (n *node) health() cluster.NodeHealth {
	h, s := n.described, n.engine.State()
	h.Ready, h.Models, h.KVEpoch, h.EngineSlots = n.ready(), s.Models, uint64(s.Epoch), s.Slots
	h.EngineVersion, h.DataParallel = s.Version, n.ranks(s)
	if s.Stats.Known(enginemetrics.BlockTokens) {
		h.BlockTokens = int(s.Stats.BlockTokens)
	}
	now := time.Now()
	h.Adapters, h.AdapterSlots = cluster.AdaptersOf(s.Adapters, now), s.AdapterSlots
	var host hostReading
	n.agent.host.read(now, &host)
	h.Load, h.PowerSource = n.load(now, &host), host.power.Source
	h.VRAMBytes = cmp.Or(h.VRAMBytes, gpu.Memory(host.engines[n.index]))
	h.GPUModel = gpu.Models(host.engines[n.index])
	h.Fit()
	return h
}

// ranks returns the number of the engine's data-parallel ranks; 0: unknown.
func (n *node) ranks(s *engine.State) int { return cmp.Or(n.unit.DataParallel, s.Ranks) }

// load returns the node's present load. host is a reading of the same moment.
func (n *node) load(now time.Time, host *hostReading) load.Load {
	return load.Load{
		Engine: n.requests(now), Kernel: n.agent.telemetry.Latest(n.index), GPU: host.gpu(n), Power: host.watts(n),
	}
}

// requests returns the figures of the front and the engine. An engine may have other clients. The
// engine's figures may be a second old; the front's are current.
func (n *node) requests(now time.Time) load.Engine {
	s := n.engine.State()
	e := load.Engine{At: load.Taken{Time: now}, InFlight: load.Known(float64(n.front.InFlight()) + s.Beyond)}
	if s.Stats.Known(enginemetrics.Waiting) {
		e.QueueDepth = load.Known(s.Stats.Waiting)
	}
	if s.Stats.Known(enginemetrics.TotalBlocks) {
		e.TotalBlocks = load.Known(s.Stats.TotalBlocks)
	}
	if free, known := s.Stats.FreeBlocks(); known {
		e.FreeBlocks = load.Known(free)
	}
	if count := n.ranks(s); count > 1 && len(s.ByRank) == count {
		e.Ranks = s.Stats.Loads(s.ByRank)
	}
	return e
}
