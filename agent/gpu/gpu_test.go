package gpu

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/load"
)

var quiet = slog.New(slog.DiscardHandler)

func two() []Device {
	return []Device{
		{Name: "0", UUID: "GPU-aa", Instance: -1,
			GPU: load.GPU{SMPct: load.Known(40)}, Watts: load.Known(300), Memory: load.Known(80)},
		{Name: "1", UUID: "GPU-bb", Instance: -1, Split: true, Watts: load.Known(100)},
		{Name: "1:5", UUID: "MIG-cc", Index: 1, Instance: 5, GPU: load.GPU{SMPct: load.Known(20)}, Memory: load.Known(40)},
		{Name: "1:5", UUID: "MIG-dd", Index: 1, Instance: 5, GPU: load.GPU{SMPct: load.Known(20)}, Memory: load.Known(40)},
	}
}

func TestSelect(t *testing.T) {
	for _, c := range []struct {
		name         string
		names        []string
		first, count int
		sm           float64 // -1: unknown
		memory       int64
	}{
		{"the first", nil, 0, 0, 40, 80},
		{"the one with MIG devices has no SM utilisation of its own", nil, 1, 1, -1, 0},
		{"both", nil, 0, 2, -1, 0},
		{"more than there are", nil, 0, 3, -1, 0},
		{"by UUID, in any case", []string{"gpu-AA"}, 0, 0, 40, 80},
		{"by instance", []string{"1:5"}, 0, 0, 20, 40},
		{"two compute instances of one GPU instance", []string{"MIG-cc", "MIG-dd"}, 0, 0, 20, 40},
		{"a GPU and an instance", []string{"0", "1:5"}, 0, 0, 30, 120},
		{"one is not there", []string{"0", "7"}, 0, 0, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Select(nil, two(), c.names, c.first, c.count)
			if sm := Load(got).SMPct.Or(-1); sm != c.sm || Memory(got) != c.memory {
				t.Errorf("SM %v, memory %d, of %+v", sm, Memory(got), got)
			}
		})
	}
}

func TestModels(t *testing.T) {
	h100, a100 := Device{Model: "NVIDIA H100 80GB HBM3"}, Device{Model: "NVIDIA A100-SXM4-80GB"}
	for _, c := range []struct {
		devices []Device
		want    string
	}{
		{nil, ""},
		{[]Device{h100}, h100.Model},
		{[]Device{h100, h100}, h100.Model},
		{[]Device{h100, a100, h100}, a100.Model + " + " + h100.Model},
		{[]Device{a100, h100}, a100.Model + " + " + h100.Model},
		{[]Device{h100, {}}, ""},
	} {
		if got := Models(c.devices); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestWatts(t *testing.T) {
	d := two()
	if w := Watts(d).Or(-1); w != 400 {
		t.Errorf("together %v", w)
	}
	d[0].Watts = load.Gauge{}
	if !Watts(d).IsZero() || !Watts(nil).IsZero() {
		t.Error("an unknown one counts as zero")
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct{ args, err string }{
		{"", ""},
		{"--gpu.interval 50ms", "gpu.interval: 50ms is not in 100ms..1m0s"},
		{"--gpu.devices 0 --gpu.devices 1:3 --gpu.devices GPU-7d1a2b3c-0000-1111-2222-333344445555 --gpu.devices MIG-aa", ""},
		{"--gpu.devices cuda0", `"cuda0" is no device`},
		{"--gpu.nvml yes", "auto"},
	} {
		var s struct {
			GPU Config `toml:"gpu"`
		}
		err := config.Load(&s, config.Options{Program: "x", Args: strings.Fields(c.args), Out: io.Discard})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
	on := Config{NVML: "on", Interval: config.Duration(time.Second), Library: "/nonexistent/libnvidia-ml.so.1"}
	if err := on.Validate(); (err == nil) != BuiltIn {
		t.Errorf("on, BuiltIn %v: %v", BuiltIn, err)
	}
	if err := on.Examine(); (err != nil) != BuiltIn {
		t.Errorf("a library that is not there, BuiltIn %v: %v", BuiltIn, err)
	}
}

func TestWithoutNVML(t *testing.T) {
	if BuiltIn {
		t.Skip("this build has NVML")
	}
	m := New(&Config{NVML: "auto", Interval: config.Duration(time.Second)}, quiet)
	m.Run(t.Context()) // returns at once, because there is nothing to read
	if m.State() != "built without NVML" || m.Devices() != nil || m.Failures() != 0 {
		t.Errorf("%s, %v, %d failures", m.State(), m.Devices(), m.Failures())
	}
}

func TestOff(t *testing.T) {
	m := New(&Config{NVML: "off", Interval: config.Duration(time.Second)}, quiet)
	m.open = func(string) (driver, error) { t.Error("opened"); return nil, errBuiltWithout }
	m.Run(t.Context())
	if m.State() != "off" {
		t.Error(m.State())
	}
}

// script is a driver that returns the readings of a function.
type script struct {
	next   func() ([]Device, error)
	closed *int
}

func (s script) read() ([]Device, error) { return s.next() }
func (s script) close()                  { *s.closed++ }

// TestMonitor: a lost driver makes all figures unknown and is opened again. A reading that is too
// old is unknown too.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(&Config{NVML: "auto", Interval: config.Duration(time.Second)}, quiet)
		m.enter("starting")
		opened, closed, reads := 0, 0, 0
		var hangs atomic.Bool
		hang := make(chan struct{})
		m.open = func(string) (driver, error) {
			opened++
			if opened == 1 {
				return nil, errors.New("not loaded")
			}
			return script{closed: &closed, next: func() ([]Device, error) {
				reads++
				if reads == 3 {
					return nil, errors.New("lost")
				}
				if hangs.Load() {
					<-hang
				}
				return two(), nil
			}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()

		synctest.Wait()
		if m.State() != "not loaded" || m.Devices() != nil || m.Failures() != 1 {
			t.Errorf("at first: %s, %v", m.State(), m.Devices())
		}
		time.Sleep(retryFirst)
		synctest.Wait()
		if m.State() != "ok" || len(m.Devices()) != 4 {
			t.Errorf("opened: %s, %v", m.State(), m.Devices())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if m.State() != "lost" || m.Devices() != nil || closed != 1 {
			t.Errorf("lost: %s, %v, closed %d", m.State(), m.Devices(), closed)
		}
		time.Sleep(retryFirst)
		synctest.Wait()
		if m.State() != "ok" || m.Devices() == nil {
			t.Errorf("back: %s", m.State())
		}
		hangs.Store(true)
		time.Sleep(6 * time.Second) // more than 3 s + 2 s
		synctest.Wait()
		if m.Devices() != nil {
			t.Error("a stale reading is given out")
		}
		before := time.Now()
		cancel()
		<-done
		if took := time.Since(before); took != stopLimit {
			t.Errorf("a driver that hangs holds the stop up for %v", took)
		}
		close(hang)
		synctest.Wait()
	})
}
