package agent

import (
	"math"
	"sync"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/cluster"
)

// host reads what belongs to no single engine, once for all nodes.
type host struct {
	agent *Agent
	cpu   *cpuMeter
	gpus  *gpu.Monitor
	power *power.Meter

	mu     sync.Mutex
	shares shares
}

// newHost prepares the readers; nothing is asked before they run.
func newHost(a *Agent) (h *host, err error) {
	h = &host{agent: a, cpu: newCPUMeter(), gpus: gpu.New(&a.config.GPU, a.log)}
	watts := h.gpuWatts
	if !gpu.BuiltIn || a.config.GPU.NVML == "off" {
		watts = nil
	}
	h.power, err = power.New(&a.config.Power, watts, a.log)
	return h, err
}

// gpuWatts is what all GPUs of the host draw, and when the first of them was read.
func (h *host) gpuWatts() (watts float64, at time.Time, known bool) {
	devices := h.gpus.Devices()
	watts, known = gpu.Watts(devices).Get()
	return watts, oldest(devices), known
}

func oldest(devices []gpu.Device) (at time.Time) {
	for i := range devices {
		if at.IsZero() || devices[i].At.Before(at) {
			at = devices[i].At
		}
	}
	return at
}

// hostReading is how the host is at one moment.
type hostReading struct {
	devices []gpu.Device
	power   power.Reading
	known   bool      // power is
	now     []float64 // each node's share of the power; together 1
	mean    []float64 // the same over about 30 s
}

// read reads GPUs and power, and says whose the power is.
func (h *host) read(now time.Time) (r hostReading) {
	r.devices = h.gpus.Devices()
	if r.power, r.known = h.power.Node(); !r.known {
		return r
	}
	if len(h.agent.nodes) == 1 {
		r.now, r.mean = all, all
		return r
	}
	engines := make([][]gpu.Device, len(h.agent.nodes))
	for i, n := range h.agent.nodes {
		engines[i] = n.devices(r.devices)
		if engines[i] == nil && len(n.unit.GPUs) > 0 {
			engines[i] = unread
		}
	}
	r.now = split(r.power.Watts, engines, r.devices)
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mean = h.shares.add(now, r.now)
	return r
}

// watts is what the node draws, now and as the mean of 30 s, of what the host does.
func (r *hostReading) watts(n *node) (watts, avg30 cluster.Gauge, at time.Time) {
	if !r.known {
		return watts, avg30, at
	}
	return cluster.Known(r.power.Watts * r.now[n.index]), cluster.Known(r.power.Mean * r.mean[n.index]), r.power.At
}

// all is the share of the only node.
var all = []float64{1}

// unread stands for GPUs that an engine has and nobody can read.
var unread = []gpu.Device{{Instance: -1, Index: -1}}

// split shares a host's power among its engines: each has that of its GPUs, and an equal part of all else. A GPU that
// several engines have instances of counts in equal parts. Where a GPU's power is not known, or the host is said to
// draw less than its GPUs, by a meter that lags, all parts are equal, or in proportion to the GPUs. The shares are of
// 1 and together 1, whatever is known: the nodes of a host add up to the host.
func split(watts float64, engines [][]gpu.Device, devices []gpu.Device) []float64 {
	parts := make([]float64, len(engines))
	for i := range parts {
		parts[i] = 1 / float64(len(parts))
	}
	own, sum, known := gpuWatts(engines, devices)
	switch {
	case !known || watts <= 0 || sum <= 0 || len(parts) == 1:
	case sum >= watts:
		for i := range parts {
			parts[i] = own[i] / sum
		}
	default:
		for i := range parts {
			parts[i] = own[i]/watts + (1-sum/watts)/float64(len(parts))
		}
	}
	return parts
}

// gpuWatts is the power of each engine's GPUs, and their sum.
func gpuWatts(engines [][]gpu.Device, read []gpu.Device) (own []float64, sum float64, known bool) {
	holders := map[int][]int{} // by the GPU's index, engines that have it or a part of it
	for i, devices := range engines {
		seen := map[int]bool{}
		for k := range devices {
			if at := devices[k].Index; !seen[at] {
				seen[at] = true
				holders[at] = append(holders[at], i)
			}
		}
	}
	own = make([]float64, len(engines))
	for at, engines := range holders {
		watts, known := wattsOf(read, at)
		if !known {
			return nil, 0, false
		}
		sum += watts
		for _, i := range engines {
			own[i] += watts / float64(len(engines))
		}
	}
	return own, sum, true
}

func wattsOf(devices []gpu.Device, index int) (watts float64, known bool) {
	for i := range devices {
		if devices[i].Index == index && devices[i].Instance < 0 {
			return devices[i].Watts.Get()
		}
	}
	return 0, false
}

// shares is the mean of shares over about 30 s, older ones counting ever less.
type shares struct {
	at   time.Time
	mean []float64
}

const sharesWindow = 30 * time.Second

// add takes the shares of now and returns the mean, which the caller may keep.
func (s *shares) add(now time.Time, parts []float64) []float64 {
	weight := 1.0
	if len(s.mean) == len(parts) {
		weight = -math.Expm1(-max(now.Sub(s.at), 0).Seconds() / sharesWindow.Seconds())
	}
	mean := make([]float64, len(parts))
	for i := range parts {
		mean[i] = parts[i]
		if weight < 1 {
			mean[i] = s.mean[i] + weight*(parts[i]-s.mean[i])
		}
	}
	s.at, s.mean = now, mean
	return mean
}
