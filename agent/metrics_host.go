package agent

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/metric"
)

func (a *Agent) powerStatus() powerStatus {
	s := powerStatus{Sources: map[string]string{}}
	if r, known := a.host.power.Node(); known {
		s.Watts, s.Average, s.Source, s.AgeMs = r.Watts, r.Mean, r.Source, r.Age().Milliseconds()
	}
	for _, source := range a.host.power.Sources() {
		s.Sources[source.Name] = source.State
	}
	return s
}

// Indexes of meterDefs.
const (
	defWatts = iota
	defAverageWatts
	defPowerAge
	defNodeWatts
	defNodeAverageWatts
	defNodeGPU
	defPowerReadings
	defGPUUp
	defGPUFailures
	defGPUBusy
	defGPUMemory
	defGPUMemoryUsed
	defGPUWatts
	defGPUThrottled
	defGPUAge
	defGPUInfo
	defNodeLoad // one for each figure of load.GPU: first the nodes', then the GPUs'
)

var meterDefs = []metric.Def{
	defWatts:            {Name: "cgn_power_watts", Labels: []string{"component", "source"}, Help: "Power of the host (component node) and of its measured parts (chassis, psu, system, gpu, cpu, dram), by source (redfish, dcmi, nvml, rapl). Absent while stale."},
	defAverageWatts:     {Name: "cgn_power_average_watts", Labels: []string{"component", "source"}, Help: "Mean of cgn_power_watts over the last 30 s, weighted with time."},
	defNodeWatts:        {Name: "cgn_agent_node_power_watts", Labels: ofNode, Help: "The node's part of the host's power: the power of its GPUs, and an equal part of all else. The nodes of a host add up to cgn_power_watts{component=\"node\"}."},
	defNodeAverageWatts: {Name: "cgn_agent_node_power_average_watts", Labels: ofNode, Help: "Mean of cgn_agent_node_power_watts over about 30 s."},
	defNodeGPU:          {Name: "cgn_agent_node_gpu", Labels: []string{"node", "gpu"}, Help: "1 for each GPU, or GPU instance, of the node's engine that is read."},
	defPowerAge:         {Name: "cgn_power_age_seconds", Labels: []string{"component", "source"}, Help: "How old the reading in cgn_power_watts is."},
	defPowerReadings:    {Name: "cgn_agent_power_readings_total", Kind: metric.Counter, Labels: []string{"source", "result"}, Help: "Readings of redfish, dcmi and rapl, by result: read or failed."},
	defGPUUp:            {Name: "cgn_agent_gpu_up", Help: "1 while the agent reads NVML; absent if NVML is off or not built in."},
	defGPUFailures:      {Name: "cgn_agent_gpu_failures_total", Kind: metric.Counter, Help: "Times that NVML could not be loaded, or was lost."},
	defGPUBusy:          {Name: "cgn_agent_gpu_busy_ratio", Labels: []string{"gpu"}, Help: "NVML's utilization.gpu, the share of time in which any kernel ran. One decoding stream makes it 1, so routing does not use it."},
	defGPUMemory:        {Name: "cgn_agent_gpu_memory_bytes", Labels: []string{"gpu"}, Help: "Memory of the GPU or GPU instance."},
	defGPUMemoryUsed:    {Name: "cgn_agent_gpu_memory_used_bytes", Labels: []string{"gpu"}, Help: "Memory of the GPU or GPU instance that is in use or reserved by the driver."},
	defGPUWatts:         {Name: "cgn_agent_gpu_watts", Labels: []string{"gpu"}, Help: "Power of the GPU with its memory; GPU instances have none of their own."},
	defGPUThrottled:     {Name: "cgn_agent_gpu_throttled", Labels: []string{"gpu", "reason"}, Help: "1 while the GPU's clocks are held down for the reason in the label."},
	defGPUAge:           {Name: "cgn_agent_gpu_age_seconds", Labels: []string{"gpu"}, Help: "How old the GPU's readings are."},
	defGPUInfo:          {Name: "cgn_agent_gpu_info", Labels: []string{"gpu", "uuid", "model"}, Help: "Always 1. gpu is the index, or index:GPU instance."},
}

// meters returns meterDefs, and loadDefs, whose index begins at defNodeLoad.
func meters() []metric.Def { return slices.Concat(meterDefs, loadDefs()) }

// loadDefs returns the metrics for each figure of load.GPU: first the nodes', then the GPUs'.
func loadDefs() (defs []metric.Def) {
	for _, s := range load.GPUSignals() {
		defs = append(defs, metric.Def{Name: "cgn_agent_node_" + s.Metric, Labels: ofNode,
			Help: s.Help + " It is the mean over the node's GPUs; absent while one of them is not known."})
	}
	for _, s := range load.GPUSignals() {
		defs = append(defs, metric.Def{Name: "cgn_agent_gpu_" + s.Metric, Labels: []string{"gpu"},
			Help: s.Help + " It covers one GPU or GPU instance since the last reading; absent while not known."})
	}
	return defs
}

// emitLoad emits the figures of l; first is the index of the first figure's definition.
func emitLoad(emit emit, first int, l load.GPU, of string) {
	for i, s := range load.GPUSignals() {
		emitGauge(emit, first+i, s.In(&load.Load{GPU: l}), s.Base, of)
	}
}

// watchMeters makes power and GPU figures readable at each scrape.
func (in *instruments) watchMeters(a *Agent) {
	in.set.Read(meters(), func(emit func(def int, value float64, labels ...string)) {
		for _, r := range a.host.power.Readings() {
			emitAll(emit, defWatts, []float64{r.Watts, r.Mean, r.Age().Seconds()}, r.Component, r.Source)
		}
		var r hostReading
		a.host.read(time.Now(), &r)
		for _, n := range a.nodes {
			power := r.watts(n)
			emitGauge(emit, defNodeWatts, power.Watts, 1, n.id())
			emitGauge(emit, defNodeAverageWatts, power.WattsAvg30, 1, n.id())
			emitLoad(emit, defNodeLoad, r.gpu(n), n.id())
			devices := r.engines[n.index]
			seen := map[string]bool{} // compute instances of one GPU instance share its name
			for i := range devices {
				if name := devices[i].Name; !seen[name] {
					seen[name] = true
					emit(defNodeGPU, 1, n.id(), name)
				}
			}
		}
		for _, s := range a.host.power.Sources() {
			if s.State != "off" {
				emit(defPowerReadings, float64(s.Read), s.Name, "read")
				emit(defPowerReadings, float64(s.Fail), s.Name, "failed")
			}
		}
		if !gpu.BuiltIn || a.config.GPU.NVML == "off" {
			return
		}
		emit(defGPUUp, metric.Bool(a.host.gpus.State() == "ok"))
		emit(defGPUFailures, float64(a.host.gpus.Failures()))
		devices := a.host.devices()
		for i := range devices {
			// compute instances share the figures of their GPU instance
			if i == 0 || devices[i].Name != devices[i-1].Name {
				emitGPU(emit, &devices[i])
			}
		}
	})
}

// emitGauge emits value, if it is known, in units of the metric.
func emitGauge(emit emit, def int, value load.Gauge, unit float64, labels ...string) {
	if v, known := value.Get(); known {
		emit(def, v/unit, labels...)
	}
}

func emitGPU(emit func(def int, value float64, labels ...string), d *gpu.Device) {
	for _, g := range []struct {
		def   int
		value load.Gauge
		unit  float64
	}{
		{defGPUBusy, d.BusyPct, 100},
		{defGPUMemory, d.Memory, 1}, {defGPUMemoryUsed, d.MemoryUsed, 1}, {defGPUWatts, d.Watts, 1},
	} {
		emitGauge(emit, g.def, g.value, g.unit, d.Name)
	}
	emitLoad(emit, defNodeLoad+len(load.GPUSignals()), d.GPU, d.Name)
	if d.HasThrottle {
		d.Throttle.Each(func(reason string, holds bool) { emit(defGPUThrottled, metric.Bool(holds), d.Name, reason) })
	}
	emit(defGPUAge, time.Since(d.At.Time).Seconds(), d.Name)
	emit(defGPUInfo, 1, d.Name, d.UUID, d.Model)
}
