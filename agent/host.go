package agent

import (
	"math"
	"sync"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/load"
)

// host reads the figures that belong to no single engine, once for all nodes.
type host struct {
	agent   *Agent
	cpu     *cpuMeter
	gpus    *gpu.Monitor
	devices func() []gpu.Device // that gpus has read
	power   *power.Meter

	mu     sync.Mutex
	shares shares
}

// newHost prepares the readers; nothing is asked before they run.
func newHost(a *Agent) (h *host, err error) {
	h = &host{agent: a, cpu: newCPUMeter(), gpus: gpu.New(&a.config.GPU, a.log)}
	h.devices = h.gpus.Devices
	watts := h.gpuWatts
	if !gpu.BuiltIn || a.config.GPU.NVML == "off" {
		watts = nil
	}
	h.power, err = power.New(&a.config.Power, watts, a.log)
	return h, err
}

// gpuWatts is the power of all GPUs of the host, and when the first of them was read.
func (h *host) gpuWatts() (watts float64, at time.Time, known bool) {
	devices := h.devices()
	watts, known = gpu.Watts(devices).Get()
	return watts, gpu.Load(devices).At.Time, known
}

// hostReading is how the host is at one moment. Its slices are memory for the next reading.
type hostReading struct {
	devices []gpu.Device
	engines [][]gpu.Device // those of each node; none where one of them cannot be read
	unread  bool           // a node has GPUs that cannot be read
	power   power.Reading
	known   bool      // power is
	now     []float64 // each node's share of the power; together 1
	mean    []float64 // the same over about 30 s
}

// read puts GPUs and power into r, and whose the power is.
func (h *host) read(now time.Time, r *hostReading) {
	nodes := h.agent.nodes
	if r.engines == nil {
		r.engines = make([][]gpu.Device, len(nodes))
	}
	r.devices, r.unread = h.devices(), false
	for i, n := range nodes {
		r.engines[i] = n.unit.devices(r.engines[i][:0], r.devices)
		r.unread = r.unread || len(r.engines[i]) == 0 && len(n.unit.GPUs) > 0
	}
	if r.power, r.known = h.power.Node(); !r.known {
		return
	}
	r.split()
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mean = h.shares.add(r.mean[:0], now, r.now)
}

// watts is the node's part of the power that the host draws.
func (r *hostReading) watts(n *node) load.Power {
	if !r.known {
		return load.Power{}
	}
	return load.Power{
		At:    load.Taken{Time: r.power.At},
		Watts: load.Known(r.power.Watts * r.now[n.index]), WattsAvg30: load.Known(r.power.Mean * r.mean[n.index]),
	}
}

// gpu is how busy the GPUs of the node's engine are.
func (r *hostReading) gpu(n *node) load.GPU {
	return gpu.Load(r.engines[n.index])
}

// split shares the host's power among its engines: each has that of its GPUs, and an equal part of
// all else. A GPU that several engines have instances of counts in equal parts. Where a GPU's power
// is not known, or the host is said to draw less than its GPUs, by a meter that lags, all parts are
// equal, or in proportion to the GPUs. The shares are of 1 and together 1, whatever is known: the
// nodes of a host add up to the host.
func (r *hostReading) split() {
	watts, engines := r.power.Watts, float64(len(r.engines))
	sum, known := r.gpuWatts()
	for i, own := range r.now {
		switch {
		case !known || r.unread || watts <= 0 || sum <= 0:
			r.now[i] = 1 / engines
		case sum >= watts:
			r.now[i] = own / sum
		default:
			r.now[i] = own/watts + (1-sum/watts)/engines
		}
	}
}

// gpuWatts puts the power of each engine's GPUs into now, and returns their sum.
func (r *hostReading) gpuWatts() (sum float64, known bool) {
	r.now, known = r.now[:0], true
	for _, devices := range r.engines {
		own := 0.0
		for k := range devices {
			at := devices[k].Index
			if has(devices[:k], at) {
				continue // another instance of the GPU
			}
			watts, its := wattsOf(r.devices, at)
			own, known = own+watts/float64(r.holders(at)), known && its
		}
		r.now, sum = append(r.now, own), sum+own
	}
	return sum, known
}

// holders counts the engines that have the GPU with that index, or a part of it.
func (r *hostReading) holders(index int) (n int) {
	for _, devices := range r.engines {
		if has(devices, index) {
			n++
		}
	}
	return n
}

// has tells whether devices are of the GPU with that index too.
func has(devices []gpu.Device, index int) bool {
	for i := range devices {
		if devices[i].Index == index {
			return true
		}
	}
	return false
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

// add takes the shares of now and appends the mean to dst.
func (s *shares) add(dst []float64, now time.Time, parts []float64) []float64 {
	weight := -math.Expm1(-max(now.Sub(s.at), 0).Seconds() / sharesWindow.Seconds())
	if s.mean == nil {
		s.mean, weight = make([]float64, len(parts)), 1
	}
	for i := range parts {
		s.mean[i] += weight * (parts[i] - s.mean[i])
	}
	s.at = now
	return append(dst, s.mean...)
}
