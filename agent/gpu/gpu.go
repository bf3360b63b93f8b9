// Package gpu reads this host's NVIDIA GPUs through NVML: how busy their SMs
// are, memory, power, and why clocks are held down, of whole GPUs and of MIG
// devices. NVML is a C library, so only a build with cgo and the tag nvml can
// load it; other builds say so and know nothing of GPUs.
package gpu

import (
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/load"
)

// Device is one GPU, or one MIG device of a GPU, as it was at At. What the
// driver does not tell is unknown.
type Device struct {
	Name     string // "0" is the GPU with that index, "0:1" its GPU instance 1
	Index    int    // of the GPU
	Instance int    // GPU instance of a MIG device; -1: the device is a GPU
	UUID     string // GPU-... or MIG-...
	Model    string
	Split    bool   // a GPU divided into MIG devices, which have entries of their own
	Why      string // why the use of its SMs cannot be known; "" where it can

	// GPU is the figures that the node's load has of its GPUs, by GPM since the reading before;
	// unknown without GPM.
	load.GPU
	// BusyPct is NVML's utilization.gpu: the share of time in which any kernel
	// ran, 100 while one stream decodes. It is shown and never counts as load.
	BusyPct     load.Gauge
	Memory      load.Gauge // bytes
	MemoryUsed  load.Gauge // bytes, with what the driver reserves
	Watts       load.Gauge // of a GPU; MIG devices have none of their own
	Throttle    Throttle
	HasThrottle bool // Throttle is known
}

// Throttle is the set of reasons for which a GPU's clocks are below their most,
// in NVML's bits (nvmlClocksEventReasons).
type Throttle uint64

// throttleReasons names the bits that slow a GPU at work down; idle clocks and
// those that an operator set are no throttling.
var throttleReasons = [...]struct {
	bit  Throttle
	name string
}{
	{0x04, "sw_power_cap"}, {0x08, "hw_slowdown"}, {0x10, "sync_boost"},
	{0x20, "sw_thermal"}, {0x40, "hw_thermal"}, {0x80, "hw_power_brake"},
}

// Each calls fn with every reason and whether it holds.
func (t Throttle) Each(fn func(reason string, holds bool)) {
	for _, r := range throttleReasons {
		fn(r.name, t&r.bit != 0)
	}
}

// Watts is the power of all GPUs of the host together; unknown where there is
// none, or one does not tell.
func Watts(devices []Device) (watts load.Gauge) {
	sum, gpus := 0.0, 0
	for i := range devices {
		if devices[i].Instance >= 0 {
			continue
		}
		w, known := devices[i].Watts.Get()
		if !known {
			return load.Gauge{}
		}
		sum, gpus = sum+w, gpus+1
	}
	if gpus == 0 {
		return load.Gauge{}
	}
	return load.Known(sum)
}

// Load is the load of one engine's GPUs: each figure's mean, which is unknown where a device does
// not tell it, at the time of the oldest reading.
func Load(devices []Device) load.GPU {
	return load.MeanGPU(len(devices), func(i int) *load.GPU { return &devices[i].GPU })
}

// Memory is the memory of devices together in bytes, each GPU instance's once;
// 0 where one is unknown.
func Memory(devices []Device) (bytes int64) {
	for i := range devices {
		v, known := devices[i].Memory.Get()
		if !known {
			return 0
		}
		if i > 0 && devices[i].Name == devices[i-1].Name {
			continue // two compute instances of one GPU instance share its memory
		}
		bytes += int64(v)
	}
	return bytes
}

// Select appends to dst the devices of one engine: those named, by index,
// GPU:instance or UUID, or, without names, count GPUs from first on. It appends
// nothing where one of them is not there, so that a part never passes for the whole.
func Select(dst, devices []Device, names []string, first, count int) []Device {
	if len(names) > 0 {
		count = len(names)
	}
	picked := dst
	for k := range max(count, 1) {
		var name string
		if len(names) > 0 {
			name = names[k]
		} else {
			name = strconv.Itoa(first + k)
		}
		at := find(devices, name)
		if at < 0 {
			return picked[:len(dst)]
		}
		picked = append(picked, devices[at])
	}
	return picked
}

// find returns where the device of that name is; -1: it is not there.
func find(devices []Device, name string) int {
	for i := range devices {
		if devices[i].named(name) {
			return i
		}
	}
	return -1
}

func (d *Device) named(name string) bool { return name == d.Name || strings.EqualFold(name, d.UUID) }
