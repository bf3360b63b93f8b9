//go:build cgo && nvml

package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cognitora/dataplane/internal/load"
)

// BuiltIn tells whether this program can load NVML.
const BuiltIn = true

const (
	libraryName = "libnvidia-ml.so.1"
	// lookAgain is how often devices are listed again, because MIG devices come and go.
	lookAgain = 30 * time.Second
	maxGPUs   = 64
	maxMIG    = 16 // MIG devices of one GPU; present GPUs have at most 7
)

// required functions have been in NVML since 2012. Each function is looked up before its first
// call, because a call of a missing function would end the process.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
	"nvmlDeviceGetPowerUsage",
}

// Functions of newer drivers, by group. A driver has all functions of a group or none.
var (
	gpmFunctions = []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet",
		"nvmlGpmMetricsGet"}
	migFunctions = []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
		"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"}
)

// library is an initialised NVML.
type library struct {
	api                          nvml.Interface
	gpm, migGPM, mig             bool
	eventReasons, throttleReason bool
	metrics                      nvml.GpmMetricsGetType // 10 KB, reused
	units                        []*unit
	listed                       time.Time
}

// unit is one device, with the data that is kept between two readings.
type unit struct {
	device          Device // the constant fields
	handle, gpu     nvml.Device
	before, current nvml.GpmSample // nil: the device has no GPM
	sampled         bool           // true if before holds a sample
}

func open(path string) (driver, error) {
	path = cmp.Or(path, libraryName)
	// NODELETE keeps the library mapped, because go-nvml's calls stay bound to this mapping until
	// the process ends.
	file := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL|dl.RTLD_NODELETE)
	if err := file.Open(); err != nil {
		return nil, fmt.Errorf("NVML is not here: %w; it comes with NVIDIA's driver, gpu.library names it elsewhere",
			err)
	}
	lacks := func(name string) bool { return file.Lookup(name) != nil }
	has := func(names ...string) bool { return !slices.ContainsFunc(names, lacks) }
	if i := slices.IndexFunc(required, lacks); i >= 0 {
		return nil, fmt.Errorf("%s exports no %s: it is not NVML, or older than 2012; set gpu.library", path, required[i])
	}
	l := &library{
		api: nvml.New(nvml.WithLibraryPath(path)), gpm: has(gpmFunctions...), mig: has(migFunctions...),
		eventReasons:   has("nvmlDeviceGetCurrentClocksEventReasons"),
		throttleReason: has("nvmlDeviceGetCurrentClocksThrottleReasons"),
	}
	l.migGPM = l.gpm && has("nvmlGpmMigSampleGet")
	if r := l.api.Init(); r != nvml.SUCCESS {
		return nil, failure("nvmlInit", r)
	}
	return l, nil
}

// failure returns an error that explains r to an operator.
func failure(call string, r nvml.Return) error {
	switch r {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%s: NVIDIA's driver is not loaded", call)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: library and driver are of two versions, as after an upgrade; restart the agent", call)
	case nvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: not permitted; the agent needs /dev/nvidiactl and /dev/nvidia*", call)
	}
	return fmt.Errorf("%s: %s", call, r.Error())
}

// lost tells whether r means that NVML as a whole no longer works.
func lost(r nvml.Return) bool {
	return r == nvml.ERROR_UNINITIALIZED || r == nvml.ERROR_DRIVER_NOT_LOADED || r == nvml.ERROR_LIB_RM_VERSION_MISMATCH
}

func (l *library) close() {
	l.forget()
	_ = l.api.Shutdown() // a lost NVML cannot be shut down and need not be
}

func (l *library) forget() {
	for _, u := range l.units {
		u.free()
	}
	l.units = nil
}

func (u *unit) free() {
	for _, s := range []nvml.GpmSample{u.before, u.current} {
		if s != nil {
			_ = s.Free()
		}
	}
	u.before, u.current, u.sampled = nil, nil, false
}

func (l *library) read() ([]Device, error) {
	if l.listed.IsZero() || time.Since(l.listed) > lookAgain {
		if err := l.list(); err != nil {
			return nil, err
		}
	}
	devices := make([]Device, len(l.units))
	for i, u := range l.units {
		r := l.measure(u, &devices[i])
		if lost(r) {
			return nil, failure("reading GPU "+u.device.Name, r)
		}
		if r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_INVALID_ARGUMENT {
			l.listed = time.Time{} // a GPU fell off the bus, or a MIG device was destroyed
		}
	}
	return devices, nil
}

// list finds the devices, and keeps the samples of devices that it knew before.
func (l *library) list() error {
	count, r := l.api.DeviceGetCount()
	if r != nvml.SUCCESS {
		return failure("nvmlDeviceGetCount", r)
	}
	old := l.units
	l.units = make([]*unit, 0, len(old))
	for i := range min(count, maxGPUs) {
		gpu, r := l.api.DeviceGetHandleByIndex(i)
		switch {
		case lost(r):
			l.units = append(l.units, old...) // so that close frees them
			return failure("nvmlDeviceGetHandleByIndex", r)
		case r != nvml.SUCCESS:
			continue // the GPU fell off the bus; the others go on
		}
		l.add(old, &unit{gpu: gpu, handle: gpu, device: Device{Name: fmt.Sprint(i), Index: i, Instance: -1}})
	}
	for _, u := range old {
		if !slices.Contains(l.units, u) {
			u.free()
		}
	}
	l.listed = time.Now()
	return nil
}

// add lists u, or its entry in old, and its MIG devices.
func (l *library) add(old []*unit, u *unit) {
	uuid, _ := u.handle.GetUUID()
	model, _ := u.handle.GetName()
	// they become labels of metrics
	u.device.UUID, u.device.Model = strings.ToValidUTF8(uuid, "?"), strings.ToValidUTF8(model, "?")
	split := false
	if l.mig && u.device.Instance < 0 {
		mode, _, r := u.handle.GetMigMode()
		split = r == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	}
	u.device.Split = split
	if at := slices.IndexFunc(old, u.same); at >= 0 {
		u = old[at]
	} else {
		l.prepare(u)
	}
	l.units = append(l.units, u)
	if split {
		l.addMIG(old, u)
	}
}

// same tells whether o is the same device.
func (u *unit) same(o *unit) bool {
	return o.device.UUID == u.device.UUID && o.device.Name == u.device.Name && o.device.Split == u.device.Split &&
		o.handle == u.handle
}

func (l *library) addMIG(old []*unit, parent *unit) {
	count, r := parent.gpu.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return
	}
	for i := range min(count, maxMIG) {
		handle, r := parent.gpu.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue // ERROR_NOT_FOUND: this slot is empty
		}
		instance, r := handle.GetGpuInstanceId()
		if r != nvml.SUCCESS {
			continue
		}
		l.add(old, &unit{gpu: parent.gpu, handle: handle, device: Device{
			Name: fmt.Sprintf("%d:%d", parent.device.Index, instance), Index: parent.device.Index, Instance: instance,
		}})
	}
}

// prepare allocates u's samples, or notes why the device has none.
func (l *library) prepare(u *unit) {
	switch {
	case !l.gpm, u.device.Instance >= 0 && !l.migGPM:
		u.device.Why = "this driver has no GPM; 520 or later has"
		return
	}
	// The query can fail, for example if the driver does not know the structure's version. Then
	// taking a sample shows the support.
	if support, r := u.gpu.GpmQueryDeviceSupport(); r == nvml.SUCCESS && support.IsSupportedDevice == 0 {
		u.device.Why = "this GPU has no GPM; Hopper and later have"
		return
	}
	if err := u.allocate(l.api); err != nil {
		u.device.Why = err.Error()
	}
}

func (u *unit) allocate(api nvml.Interface) error {
	var r nvml.Return
	if u.before, r = api.GpmSampleAlloc(); r != nvml.SUCCESS {
		u.before = nil
		return failure("nvmlGpmSampleAlloc", r)
	}
	if u.current, r = api.GpmSampleAlloc(); r != nvml.SUCCESS {
		u.current = nil
		u.free()
		return failure("nvmlGpmSampleAlloc", r)
	}
	return nil
}

// measure fills in d. measure returns the worst result of its calls: one that means a lost driver
// or device, or else success.
func (l *library) measure(u *unit, d *Device) (worst nvml.Return) {
	*d = u.device
	note := func(r nvml.Return) bool {
		if lost(r) || !lost(worst) && (r == nvml.ERROR_GPU_IS_LOST ||
			r == nvml.ERROR_INVALID_ARGUMENT && u.device.Instance >= 0) {
			worst = r
		}
		return r == nvml.SUCCESS
	}
	if m, r := u.handle.GetMemoryInfo(); note(r) {
		d.Memory, d.MemoryUsed = load.Known(float64(m.Total)), load.Known(float64(m.Used))
	}
	if u.before != nil {
		l.sm(u, d, note)
	}
	if u.device.Instance < 0 {
		l.measureGPU(u, d, note)
	}
	d.At.Time = time.Now()
	return worst
}

// measureGPU reads the figures that MIG devices do not have.
func (l *library) measureGPU(u *unit, d *Device, note func(nvml.Return) bool) {
	if busy, r := u.handle.GetUtilizationRates(); note(r) {
		d.BusyPct = load.Known(float64(busy.Gpu))
	}
	if milliwatts, r := u.handle.GetPowerUsage(); note(r) {
		d.Watts = load.Known(float64(milliwatts) / 1000)
	}
	var reasons uint64
	r := nvml.ERROR_NOT_SUPPORTED
	switch {
	case l.eventReasons:
		reasons, r = u.handle.GetCurrentClocksEventReasons()
	case l.throttleReason:
		reasons, r = u.handle.GetCurrentClocksThrottleReasons() //nolint:staticcheck // for drivers before 535
	}
	if note(r) {
		d.Throttle, d.HasThrottle = Throttle(reasons), true
	}
}

// sm takes a sample and compares it with the previous one.
func (l *library) sm(u *unit, d *Device, note func(nvml.Return) bool) {
	var r nvml.Return
	if u.device.Instance < 0 {
		r = u.current.Get(u.gpu)
	} else {
		r = u.current.MigGet(u.gpu, u.device.Instance)
	}
	if !note(r) {
		u.sampled = false
		d.Why = failure("GPM sample", r).Error()
		return
	}
	u.before, u.current = u.current, u.before
	if !u.sampled {
		u.sampled = true
		return
	}
	m := &l.metrics
	m.NumMetrics, m.Sample1, m.Sample2 = 1, u.current, u.before
	m.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_SM_UTIL)
	if r := l.api.GpmMetricsGet(m); !note(r) {
		d.Why = failure("nvmlGpmMetricsGet", r).Error()
		return
	}
	v := m.Metrics[0].Value
	if status := nvml.Return(m.Metrics[0].NvmlReturn); status != nvml.SUCCESS || !(v >= 0 && v <= 100.5) {
		d.Why = fmt.Sprintf("GPM's SM utilisation: %s, %g", status.Error(), v)
		return
	}
	d.SMPct = load.Known(min(v, 100))
}
