package agent

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/load"
)

// host reads the host's figures once for all nodes.
type host struct {
	agent   *Agent
	cpu     *cpuMeter
	gpus    *gpu.Monitor
	devices func() []gpu.Device // returns the devices that gpus has read
	power   *power.Meter

	mu     sync.Mutex
	shares shares
}

// newHost prepares the readers. The readers read nothing before they run.
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

// gpuWatts returns the power of all GPUs of the host, and the time at which the first of them was
// read.
func (h *host) gpuWatts() (watts float64, at time.Time, known bool) {
	devices := h.devices()
	watts, known = gpu.Watts(devices).Get()
	return watts, gpu.Load(devices).At.Time, known
}

// hostReading holds the host's figures at one moment. The next reading reuses its slices.
type hostReading struct {
	devices []gpu.Device
	engines [][]gpu.Device // devices of each node; empty if one of the node's devices cannot be read
	unread  bool           // true if a node has GPUs that cannot be read
	power   power.Reading
	known   bool      // true if power is known
	now     []float64 // each node's share of the power; the sum is 1
	mean    []float64 // mean of now over about 30 s
}

// read puts the GPUs, the host's power and each node's share of it into r.
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

// watts returns the node's part of the host's power.
func (r *hostReading) watts(n *node) load.Power {
	if !r.known {
		return load.Power{}
	}
	return load.Power{
		At:    load.Taken{Time: r.power.At},
		Watts: load.Known(r.power.Watts * r.now[n.index]), WattsAvg30: load.Known(r.power.Mean * r.mean[n.index]),
	}
}

// gpu returns the load of the GPUs of the node's engine.
func (r *hostReading) gpu(n *node) load.GPU {
	return gpu.Load(r.engines[n.index])
}

// split divides the host's power among its engines. An engine gets the power of its GPUs and an
// equal part of the rest. A GPU with instances of several engines counts in equal parts. All shares
// are equal if the power of a GPU is unknown. The shares are in proportion to the GPUs' power if
// the GPUs together draw more than the host's meter says, because a meter can lag. The shares
// always add up to 1.
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

// gpuWatts puts the power of each engine's GPUs into r.now, and returns the sum.
func (r *hostReading) gpuWatts() (sum float64, known bool) {
	r.now, known = r.now[:0], true
	for _, devices := range r.engines {
		own := 0.0
		for k := range devices {
			at := devices[k].Index
			if has(devices[:k], at) {
				continue // devices[:k] has another instance of this GPU
			}
			watts, its := wattsOf(r.devices, at)
			own, known = own+watts/float64(r.holders(at)), known && its
		}
		r.now, sum = append(r.now, own), sum+own
	}
	return sum, known
}

// holders counts the engines that have the GPU with this index, or an instance of it.
func (r *hostReading) holders(index int) (n int) {
	for _, devices := range r.engines {
		if has(devices, index) {
			n++
		}
	}
	return n
}

// has tells whether devices contains the GPU with this index, or an instance of it.
func has(devices []gpu.Device, index int) bool {
	return slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.Index == index })
}

func wattsOf(devices []gpu.Device, index int) (watts float64, known bool) {
	for i := range devices {
		if devices[i].Index == index && devices[i].Instance < 0 {
			return devices[i].Watts.Get()
		}
	}
	return 0, false
}

// shares is the mean of the shares over about 30 s. An older value has less weight.
type shares struct {
	at   time.Time
	mean []float64
}

const sharesWindow = 30 * time.Second

// add adds the present shares to the mean, and appends the mean to dst.
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
