// Package gpu reads this host's NVIDIA GPUs through NVML: SM utilisation, memory, power, and the
// reasons for reduced clocks, of whole GPUs and of MIG devices. NVML is a C library, so only a
// build with cgo and the tag nvml can load it. Other builds report that NVML is missing and have no
// GPU figures.
package gpu

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/load"
)

// Device is one GPU, or one MIG device of a GPU, at the time At. A figure that the driver does not
// report is unknown.
type Device struct {
	Name     string // "0" is the GPU with index 0, "0:1" its GPU instance 1
	Index    int    // index of the GPU
	Instance int    // GPU instance of a MIG device; -1 for a GPU
	UUID     string // GPU-... or MIG-...
	Model    string
	Split    bool   // true for a GPU that is divided into MIG devices, which have entries of their own
	Why      string // why its SM utilisation cannot be known; "" if it can

	// GPU holds the GPU figures of the node's load, which GPM measures since the previous reading.
	// The figures are unknown without GPM.
	load.GPU
	// BusyPct is NVML's utilization.gpu, the share of time in which any kernel ran. BusyPct is
	// already 100 while a single stream decodes. So BusyPct is only displayed and never counts as
	// load.
	BusyPct     load.Gauge
	Memory      load.Gauge // bytes
	MemoryUsed  load.Gauge // bytes, including the driver's reserve
	Watts       load.Gauge // power of a GPU; unknown for MIG devices
	Throttle    Throttle
	HasThrottle bool // true if Throttle is known
}

// Throttle is the set of reasons for which a GPU's clocks are below their maximum, in NVML's bits
// (nvmlClocksEventReasons).
type Throttle uint64

// throttleReasons names the bits that count as throttling. Idle clocks and clocks that an operator
// set are not throttling.
var throttleReasons = [...]struct {
	bit  Throttle
	name string
}{
	{0x04, "sw_power_cap"}, {0x08, "hw_slowdown"}, {0x10, "sync_boost"},
	{0x20, "sw_thermal"}, {0x40, "hw_thermal"}, {0x80, "hw_power_brake"},
}

// Each calls fn with every reason, and whether it applies.
func (t Throttle) Each(fn func(reason string, holds bool)) {
	for _, r := range throttleReasons {
		fn(r.name, t&r.bit != 0)
	}
}

// Watts returns the power of all GPUs of the host together. The sum is unknown without GPUs, or if
// the power of one GPU is unknown.
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

// Load returns the load of one engine's GPUs, at the time of the oldest reading. Each figure is the
// mean over the devices. A figure is unknown if it is unknown for one device.
func Load(devices []Device) load.GPU {
	return load.MeanGPU(len(devices), func(i int) *load.GPU { return &devices[i].GPU })
}

// Memory returns the memory of devices together in bytes. Memory counts each GPU instance once. The
// sum is 0 if one device's memory is unknown.
func Memory(devices []Device) (bytes int64) {
	for i := range devices {
		v, known := devices[i].Memory.Get()
		if !known {
			return 0
		}
		if i > 0 && devices[i].Name == devices[i-1].Name {
			continue // compute instances of one GPU instance share its memory
		}
		bytes += int64(v)
	}
	return bytes
}

// Models returns the product name of devices. Names that differ are sorted and joined with " + ",
// so the order of the devices does not matter. The name is empty if one device's name is unknown.
func Models(devices []Device) string {
	var names []string
	for i := range devices {
		if devices[i].Model == "" {
			return ""
		}
		names = append(names, devices[i].Model)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " + ")
}

// Select appends to dst the devices of one engine: those with the given names (index, GPU:instance
// or UUID), or without names count GPUs from first on. Select appends nothing if one of the devices
// is missing, because a part must not count as the whole.
func Select(dst, devices []Device, names []string, first, count int) []Device {
	if len(names) > 0 {
		count = len(names)
	}
	picked := dst
	for k := range max(count, 1) {
		name := strconv.Itoa(first + k)
		if len(names) > 0 {
			name = names[k]
		}
		at := find(devices, name)
		if at < 0 {
			return picked[:len(dst)]
		}
		picked = append(picked, devices[at])
	}
	return picked
}

// find returns the index of the device with this name; -1: there is none.
func find(devices []Device, name string) int {
	return slices.IndexFunc(devices, func(d Device) bool { return d.named(name) })
}

func (d *Device) named(name string) bool { return name == d.Name || strings.EqualFold(name, d.UUID) }
