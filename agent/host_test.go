package agent

import (
	"math"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/load"
)

// TestSplit: the power of the engines adds up to the host's power, and each engine has the power of
// its own GPUs.
func TestSplit(t *testing.T) {
	whole := func(index int, watts float64) gpu.Device {
		return gpu.Device{Index: index, Instance: -1, Watts: load.Known(watts)}
	}
	instance := func(index, instance int) gpu.Device { return gpu.Device{Index: index, Instance: instance} }
	all := []gpu.Device{whole(0, 300), whole(1, 100), whole(2, 200), instance(2, 1), instance(2, 2),
		{Index: 3, Instance: -1}}
	gpus := func(devices ...gpu.Device) []gpu.Device { return devices }
	for _, c := range []struct {
		name    string
		watts   float64
		engines [][]gpu.Device
		want    []float64 // watts
	}{
		{"a GPU each, the rest in halves", 600, [][]gpu.Device{gpus(all[0]), gpus(all[1])}, []float64{400, 200}},
		{"several GPUs", 700, [][]gpu.Device{gpus(all[0], all[1]), gpus(all[2])}, []float64{450, 250}},
		{"an engine without GPUs", 600, [][]gpu.Device{gpus(all[0]), nil}, []float64{450, 150}},
		{"two instances of a GPU, one of them with two compute instances", 600,
			[][]gpu.Device{gpus(all[3], all[3]), gpus(all[4])}, []float64{300, 300}},
		{"a GPU, and instances of another", 600, [][]gpu.Device{gpus(all[0]), gpus(all[3]), gpus(all[4])},
			[]float64{300 + 100.0/3, 100 + 100.0/3, 100 + 100.0/3}},
		{"a meter that lags behind the GPUs", 200, [][]gpu.Device{gpus(all[0]), gpus(all[1])}, []float64{150, 50}},
		{"a GPU whose power is not known", 600, [][]gpu.Device{gpus(all[0]), gpus(all[5])}, []float64{300, 300}},
		{"no GPUs", 90, [][]gpu.Device{nil, nil, nil}, []float64{30, 30, 30}},
		{"one engine", 600, [][]gpu.Device{gpus(all[0])}, []float64{600}},
		{"nothing is drawn", 0, [][]gpu.Device{gpus(all[0]), nil}, []float64{0, 0}},
	} {
		sum, r := 0.0, hostReading{devices: all, engines: c.engines}
		r.power.Watts = c.watts
		r.split()
		for i, part := range r.now {
			sum += part
			if got := part * c.watts; math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("%s: engine %d has %g W, want %g", c.name, i, got, c.want[i])
			}
		}
		if math.Abs(sum-1) > 1e-12 {
			t.Errorf("%s: the parts are %g of all", c.name, sum)
		}
	}
	r := hostReading{devices: all, engines: [][]gpu.Device{gpus(all[0]), nil}, unread: true}
	r.power.Watts = 600
	if r.split(); r.now[0] != 0.5 || r.now[1] != 0.5 {
		t.Errorf("GPUs that cannot be read: %v", r.now)
	}
}

// TestSharesMean: the mean follows in about 30 s, and always adds up to 1.
func TestSharesMean(t *testing.T) {
	var s shares
	now := time.Now()
	if mean := s.add(nil, now, []float64{0.5, 0.5}); mean[0] != 0.5 {
		t.Errorf("the first: %v", mean)
	}
	var mean []float64
	for range 300 {
		now = now.Add(100 * time.Millisecond)
		mean = s.add(nil, now, []float64{1, 0})
		if math.Abs(mean[0]+mean[1]-1) > 1e-9 {
			t.Fatalf("%v", mean)
		}
	}
	if want := 1 - 0.5/math.E; math.Abs(mean[0]-want) > 0.01 {
		t.Errorf("after 30 s: %v, want %g", mean, want)
	}
	if again := s.add(nil, now.Add(-time.Hour), []float64{0, 1}); again[0] != mean[0] {
		t.Errorf("a clock that steps back: %v", again)
	}
}
