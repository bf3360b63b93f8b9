//go:build cgo && nvml

package gpu

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEachCallFails: if one call fails, only its figures are unknown.
func TestEachCallFails(t *testing.T) {
	for _, c := range []struct {
		call   string
		lacks  func(*Device) bool
		others func(*Device) bool
	}{
		{"nvmlDeviceGetMemoryInfo", func(d *Device) bool { return d.Memory.IsZero() && d.MemoryUsed.IsZero() }, func(d *Device) bool { return !d.SMPct.IsZero() && !d.Watts.IsZero() }},
		{"nvmlDeviceGetPowerUsage", func(d *Device) bool { return d.Watts.IsZero() }, func(d *Device) bool { return !d.SMPct.IsZero() && !d.Memory.IsZero() }},
		{"nvmlDeviceGetUtilizationRates", func(d *Device) bool { return d.BusyPct.IsZero() }, func(d *Device) bool { return !d.SMPct.IsZero() }},
		{"nvmlDeviceGetCurrentClocksEventReasons", func(d *Device) bool { return !d.HasThrottle }, func(d *Device) bool { return !d.SMPct.IsZero() }},
		{"nvmlGpmQueryDeviceSupport", func(d *Device) bool { return d.Why == "" }, func(d *Device) bool { return !d.SMPct.IsZero() }},
		{"nvmlGpmSampleAlloc", func(d *Device) bool { return d.SMPct.IsZero() && d.Why != "" }, func(d *Device) bool { return !d.Watts.IsZero() }},
		{"nvmlGpmSampleGet", func(d *Device) bool { return d.SMPct.IsZero() && d.Why != "" }, func(d *Device) bool { return !d.Watts.IsZero() }},
		{"nvmlGpmMetricsGet", func(d *Device) bool { return d.SMPct.IsZero() && d.Why != "" }, func(d *Device) bool { return !d.Watts.IsZero() }},
		{"metric", func(d *Device) bool { return d.SMPct.IsZero() && d.Why != "" }, func(d *Device) bool { return !d.Watts.IsZero() }},
		{"nvmlDeviceGetUUID", func(d *Device) bool { return d.UUID == "" }, func(d *Device) bool { return !d.SMPct.IsZero() }},
		{"nvmlDeviceGetName", func(d *Device) bool { return d.Model == "" }, func(d *Device) bool { return !d.SMPct.IsZero() }},
		{"nvmlDeviceGetMigMode", func(d *Device) bool { return !d.Split }, func(d *Device) bool { return !d.SMPct.IsZero() }},
	} {
		for _, r := range []int{2, 3, 4, 15, 999} {
			t.Run(fmt.Sprintf("%s/%d", c.call, r), func(t *testing.T) {
				f := newFake(t)
				f.say(c.call, r)
				l := f.open()
				read(t, l)
				d := read(t, l)
				if len(d) != 1 || !c.lacks(&d[0]) || !c.others(&d[0]) {
					t.Errorf("%+v", d)
				}
				f.say("nvmlGpmSampleAlloc", 0)
			})
		}
	}
}

func TestListingInstancesFails(t *testing.T) {
	for _, call := range []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId"} {
		t.Run(call, func(t *testing.T) {
			f := newFake(t)
			f.say("mig1", 2, call, 3)
			if d := read(t, f.open()); len(d) != 1 || !d[0].Split {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestSamples(t *testing.T) {
	t.Run("GPM of a strict version, and none", func(t *testing.T) {
		f := newFake(t)
		f.say("count", 2, "strict", 1)
		l := f.open()
		read(t, l)
		if d := read(t, l); d[0].SMPct.IsZero() {
			t.Errorf("%+v", d)
		}
		f.say("strict", 0, "gpm2", 0)
		l = f.open()
		read(t, l)
		if d := read(t, l); d[0].SMPct.IsZero() || !d[1].SMPct.IsZero() || !strings.Contains(d[1].Why, "Hopper") {
			t.Errorf("%+v", d)
		}
	})
	t.Run("memory for one sample only", func(t *testing.T) {
		f := newFake(t)
		f.say("samples", 1)
		l := f.open()
		if d := read(t, l); d[0].Why == "" || l.units[0].before != nil {
			t.Errorf("%+v", d)
		}
		f.say("samples", 2)
		l.listed, l.units = l.listed.AddDate(-1, 0, 0), nil
		if d := read(t, l); d[0].Why != "" {
			t.Errorf("the sample was not given back: %+v", d)
		}
	})
	t.Run("absurd", func(t *testing.T) {
		f := newFake(t)
		for _, v := range []string{"-3", "1e30", "nan", "inf"} {
			f.say("sm1", v)
			l := f.open()
			read(t, l)
			if d := read(t, l); !d[0].SMPct.IsZero() {
				t.Errorf("SM %s is taken for %v", v, d[0].SMPct)
			}
		}
	})
}

// TestLost: if one GPU falls off the bus, the others remain. A lost driver is an error.
func TestLost(t *testing.T) {
	f := newFake(t)
	f.say("count", 2)
	l := f.open()
	read(t, l)
	f.say("fail1", 15)
	d := read(t, l)
	if len(d) != 2 || !d[0].Watts.IsZero() || !d[0].SMPct.IsZero() || d[1].SMPct.IsZero() {
		t.Errorf("%+v", d)
	} else if !Watts(d).IsZero() || !Load(d).SMPct.IsZero() {
		t.Error("a lost GPU counts as zero")
	}
	f.say("fail1", 0)
	read(t, l)
	if d := read(t, l); d[0].SMPct.IsZero() {
		t.Errorf("it is back: %+v", d[0])
	}
	for r, text := range map[int]string{9: "driver is not loaded", 1: "fake error 1", 18: "restart the agent"} {
		for _, call := range []string{"nvmlDeviceGetPowerUsage", "nvmlGpmSampleGet"} {
			f.say(call, r)
			if _, err := l.read(); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s %d: %v", call, r, err)
			}
			f.say(call, 0)
		}
	}
	for _, call := range []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"} {
		f.say(call, 9)
		l.listed = l.listed.AddDate(-1, 0, 0)
		if _, err := l.read(); err == nil || !strings.Contains(err.Error(), "not loaded") {
			t.Errorf("%s: %v", call, err)
		}
		f.say(call, 0)
	}
}

// TestOpenFails: a missing library, a file that is not NVML, and an NVML without a driver each give
// an error and no crash.
func TestOpenFails(t *testing.T) {
	f := newFake(t)
	if _, err := open(filepath.Join(t.TempDir(), "none.so")); err == nil ||
		!strings.Contains(err.Error(), "NVML is not here") {
		t.Errorf("absent: %v", err)
	}
	if _, err := open("libm.so.6"); err == nil || !strings.Contains(err.Error(), "exports no nvmlInit_v2") {
		t.Errorf("another library: %v", err)
	}
	for r, text := range map[int]string{9: "driver is not loaded", 4: "/dev/nvidia", 18: "two versions",
		999: "fake error 999"} {
		f.say("nvmlInit_v2", r)
		if _, err := open(built.path); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("nvmlInit %d: %v", r, err)
		}
	}
}

// TestOldDriver: a library without GPM, MIG and event reasons gives its other figures.
func TestOldDriver(t *testing.T) {
	f := newFake(t)
	f.say("throttle1", 4)
	path := filepath.Join(t.TempDir(), "old.so")
	compile(t, path, "-DOLD")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_NVML="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var d []Device
	if err := json.Unmarshal(out, &d); err != nil || len(d) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if !d[0].SMPct.IsZero() || !strings.Contains(d[0].Why, "no GPM") || d[0].Watts.Or(-1) != 350.5 ||
		d[0].Throttle != 4 {
		t.Errorf("%+v", d[0])
	}
}
