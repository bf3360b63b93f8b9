package power

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

const second = time.Second

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9*max(1, math.Abs(b)) }

func TestMean(t *testing.T) {
	type sample struct {
		at    time.Duration
		watts float64
	}
	for _, c := range []struct {
		name    string
		samples []sample
		now     time.Duration
		mean    float64 // -1: unknown
	}{
		{"none", nil, 0, -1},
		{"one, now", []sample{{5 * second, 100}}, 5 * second, 100},
		{"one, fresh", []sample{{5 * second, 100}}, 14 * second, 100},
		{"one, stale", []sample{{5 * second, 100}}, 16 * second, -1},
		{"weighted with time, not with count", []sample{{0, 100}, {8 * second, 400}, {9 * second, 400}}, 10 * second, (8*100 + 2*400) / 10.},
		{"only the window", []sample{{0, 1000}, {9 * second, 1000}, {18 * second, 100}, {27 * second, 100}, {36 * second, 100}, {45 * second, 100}}, 50 * second, 100},
		{"half of a reading in the window", []sample{{0, 1000}, {10 * second, 100}, {20 * second, 100}, {30 * second, 100}}, 35 * second, (5*1000 + 25*100) / 30.},
		{"a gap is neither zero nor the old value", []sample{{0, 100}, {25 * second, 300}}, 30 * second, (10*100 + 5*300) / 15.},
		{"older than the last is ignored", []sample{{5 * second, 100}, {4 * second, 900}}, 6 * second, 100},
		{"the same time again replaces", []sample{{5 * second, 100}, {5 * second, 200}}, 6 * second, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s series
			for _, x := range c.samples {
				s.add(x.at, x.watts)
			}
			mean, known := s.mean(c.now, 10*second)
			if known != (c.mean >= 0) || known && !near(mean, c.mean) {
				t.Errorf("%v %v, want %v", mean, known, c.mean)
			}
		})
	}
	t.Run("a long run at the shortest interval", func(t *testing.T) {
		var s series
		for i := range 10_000 {
			s.add(time.Duration(i)*minInterval, float64(i%2)*200)
		}
		if mean, known := s.mean(10_000*minInterval, 10*second); !known || !near(mean, 100) {
			t.Errorf("%v %v", mean, known)
		}
	})
}

// TestCombining: which source gives the host's power, and when it is unknown.
func TestCombining(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name     string
		readings map[component]float64
		stale    []component
		expected []component
		watts    float64
		source   string
	}{
		{"nothing", nil, nil, nil, none, ""},
		{"the chassis before all", map[component]float64{chassis: 800, psu: 850, system: 790, gpu: 500, cpu: 100}, nil, nil, 800, "redfish"},
		{"supplies where the chassis is stale", map[component]float64{chassis: 800, psu: 850, system: 790}, []component{chassis}, nil, 850, "redfish"},
		{"DCMI before a sum", map[component]float64{system: 790, gpu: 500, cpu: 100}, nil, nil, 790, "dcmi"},
		{"the sum", map[component]float64{gpu: 500, cpu: 100, dram: 20}, nil, nil, 620, "nvml+rapl"},
		{"GPUs alone, where RAPL cannot be read", map[component]float64{gpu: 500}, nil, nil, 500, "nvml"},
		{"CPUs alone, of a host without GPUs", map[component]float64{cpu: 100, dram: 20}, nil, nil, 120, "rapl"},
		{"CPUs of a host whose GPUs nobody reads", map[component]float64{cpu: 100}, nil, []component{gpu}, none, ""},
		{"a stale GPU is not zero", map[component]float64{gpu: 500, cpu: 100}, []component{gpu}, nil, none, ""},
		{"a stale CPU is not zero", map[component]float64{gpu: 500, cpu: 100}, []component{cpu}, nil, none, ""},
		{"stale DRAM is not zero", map[component]float64{gpu: 500, cpu: 100, dram: 20}, []component{dram}, nil, none, ""},
		{"RAPL that has been opened and told nothing yet", map[component]float64{gpu: 500}, nil, []component{cpu}, none, ""},
		{"all stale", map[component]float64{chassis: 1, gpu: 2}, []component{chassis, gpu}, nil, none, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := state{start: time.Now(), hold: 30 * second}
			now := 100 * second
			for k, w := range c.readings {
				at := now - time.Duration(k)*second
				for _, old := range c.stale {
					if old == k {
						at = now - 31*second
					}
				}
				s.add(k, at, w)
			}
			for _, e := range c.expected {
				s.expected[e] = true
			}
			r, known := s.node(now)
			if known != (c.watts != none) ||
				known && (r.Watts != c.watts || r.Mean != c.watts || r.Source != c.source || r.Component != Node) {
				t.Errorf("%+v %v", r, known)
			}
			if _, sum := c.readings[dram]; known && sum && c.source == "nvml+rapl" &&
				!r.At.Equal(s.start.Add(now-time.Duration(dram)*second)) {
				t.Errorf("a sum is as old as its oldest part: %v", r.At.Sub(s.start))
			}
		})
	}
}

// TestReadingsDoNotGoBack: a GPU reading that is returned twice, or late, does not change the
// series.
func TestReadingsDoNotGoBack(t *testing.T) {
	s := state{start: time.Now(), hold: 30 * second}
	s.add(gpu, 5*second, 100)
	s.add(gpu, 4*second, 900)
	if r, _ := s.of(gpu, 6*second); r.Watts != 100 {
		t.Errorf("%+v", r)
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, err string }{
		{"", ""},
		{"--power.interval 100ms", "power.interval: 100ms"},
		{"--power.bmc_interval 10m", "power.bmc_interval"},
		{"--power.stale_after 15s", "power.stale_after: 15s is not in 20s..1h"},
		{"--power.redfish.address https://bmc.example --power.redfish.username power --power.redfish.password_file " + secret, ""},
		{"--power.redfish.address https://10.0.0.5:8443/", ""},
		{"--power.redfish.address http://127.0.0.1:8000", ""},
		{"--power.redfish.address http://bmc.example", "in the clear; use https"},
		{"--power.redfish.address bmc.example", "no URL of a BMC"},
		{"--power.redfish.address https://power:hush@bmc.example", "fields of their own"},
		{"--power.redfish.address https://bmc.example/redfish/v1", "the path is /redfish/v1 always"},
		{"--power.redfish.address https://bmc.example --power.redfish.username power", "goes together with password_file"},
		{"--power.redfish.username power", "power.redfish.address: empty"},
		{"--power.redfish.address https://b --power.redfish.certificate_sha256 12:34", "64 hexadecimal digits"},
		{"--power.redfish.address https://b --power.redfish.ca x --power.redfish.certificate_sha256 " + strings.Repeat("ab", 32), "give one of them"},
		{"--check-config --power.redfish.address https://b --power.redfish.username u --power.redfish.password_file " + dir + "/none", "power.redfish.password_file: " + dir + "/none does not exist"},
		{"--check-config --power.redfish.address https://b --power.redfish.ca " + secret, "power.redfish.ca: " + secret + " holds no certificate"},
		{"--check-config --power.ipmi_device " + dir + "/ipmi9", "power.ipmi_device: " + dir + "/ipmi9 does not exist; load the kernel's ipmi_si"},
		{"--check-config", ""},
	} {
		var s struct {
			Power Config `toml:"power"`
		}
		var out strings.Builder
		err := config.Load(&s, config.Options{Program: "x", Args: strings.Fields(c.args), Out: &out})
		if errors.Is(err, config.ErrAnswered) {
			err = nil
		}
		if (err == nil) != (c.err == "") ||
			err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%q: %v, want %q", c.args, err, c.err)
		}
	}
	on := Config{RAPL: "on", IPMIDevice: "off"}
	_, rapl := openRAPL(powercap)
	if err := on.Examine(); (err == nil) != (rapl == nil) {
		t.Errorf("rapl on: %v, and opening it: %v", err, rapl)
	}
}
