package agent

import (
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/enginemetrics"
)

// describe is the part of the node's health that never changes.
func (c *Config) describe(id, address string) cluster.NodeHealth {
	return cluster.NodeHealth{
		NodeID: id, Address: address, KVAddress: c.Agent.KVAddress,
		Role: cluster.Role(c.Agent.Role), Engine: c.Engine.Kind,
		Device: c.Agent.Device, GPUIndex: c.Agent.GPUIndex, TP: c.Agent.TP, DType: c.Agent.DType,
		VRAMBytes: int64(c.Agent.VRAM), MaxConcurrent: c.Agent.MaxConcurrent,
		Version: buildinfo.Version(),
	}
}

// health describes the node now. What nobody measures stays unknown.
func (a *Agent) health() cluster.NodeHealth {
	h, s := a.node, a.engine.State()
	h.Ready, h.Models, h.KVEpoch = a.ready(), s.Models, uint64(s.Epoch)
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
	a.measure(&h)
	_, _, h.PowerSource, _ = a.watts()
	a.cpu.percent(time.Now()) // for the metric
	if h.VRAMBytes == 0 {
		h.VRAMBytes = gpu.Memory(a.engineGPUs())
	}
	h.Fit()
	return h
}

// inFlight is how many requests are in the engine, and of those waiting.
func (a *Agent) inFlight() (all, waiting cluster.Gauge) {
	s := a.engine.State()
	n := float64(a.front.InFlight())
	if s.Stats.Known(enginemetrics.Running | enginemetrics.Waiting) {
		// An engine may have other clients, and its figures may be a second old.
		n = max(n, s.Stats.Running+s.Stats.Waiting)
	}
	if s.Stats.Known(enginemetrics.Waiting) {
		waiting = cluster.Known(s.Stats.Waiting)
	}
	return cluster.Known(n), waiting
}
