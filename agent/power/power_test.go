package power

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// tree is a directory as /sys/class/powercap.
func tree(t *testing.T, zones map[string][3]string) string {
	t.Helper()
	root := t.TempDir()
	for dir, z := range zones {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"name", "energy_uj", "max_energy_range_uj"} {
			write(t, filepath.Join(root, dir, name), z[i])
		}
	}
	return root
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// twoSockets is a server: two packages with their parts, what is no package, and
// packages shown a second time.
func twoSockets(t *testing.T) string {
	return tree(t, map[string][3]string{
		"intel-rapl":        {"", "", ""},
		"intel-rapl:0":      {"package-0", "1000000", "262143328850"},
		"intel-rapl:0:0":    {"core", "500000000", "262143328850"},
		"intel-rapl:0:1":    {"dram", "100", "65712999613"},
		"intel-rapl:1":      {"package-1", "262143328000", "262143328850"},
		"intel-rapl:1:0":    {"dram", "200", "65712999613"},
		"intel-rapl:2":      {"psys", "5", "65712999613"},
		"intel-rapl-mmio:0": {"package-0", "1000000", "262143328850"},
	})
}

func TestRAPL(t *testing.T) {
	root := twoSockets(t)
	r, err := openRAPL(root)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	now := 10 * second
	read := func() (cpuWatts, dramWatts float64, cpuKnown, dramKnown bool, err error) {
		w, k, err := r.read(func() time.Duration { return now })
		return w[cpu], w[dram], k[cpu], k[dram], err
	}
	set := func(zone, energy string) { write(t, filepath.Join(root, zone, "energy_uj"), energy) }
	if _, _, known, _, err := read(); known || err != nil {
		t.Fatalf("one reading tells no power: %v, %v", known, err)
	}

	now += 2 * second
	set("intel-rapl:0", "201000000") // 200 J in 2 s
	set("intel-rapl:1", "49999150")  // wraps: 850 uJ + 49.99915 J = 50 J
	set("intel-rapl:0:1", "10000100")
	set("intel-rapl:1:0", "20000200")
	if c, d, cKnown, dKnown, err := read(); !cKnown || !dKnown || err != nil || !near(c, 125) || !near(d, 15) {
		t.Errorf("cpu %v %v, dram %v %v, %v", c, cKnown, d, dKnown, err)
	}

	// A counter that was reset looks like one that wrapped: 60 kJ in a second is nobody's.
	now += second
	set("intel-rapl:0", "7")
	if _, _, known, _, err := read(); known || err != nil {
		t.Errorf("after a reset: known %v, %v", known, err)
	}
	now += second
	set("intel-rapl:0", "100000007")
	if c, _, known, _, _ := read(); !known || !near(c, 100) {
		t.Errorf("after that: %v %v", c, known)
	}

	// Two readings that are far apart may have two wraps between them.
	now += maxGap + second
	if _, _, known, _, _ := read(); known {
		t.Error("known after a gap")
	}
	if _, _, known, _, _ := read(); known {
		t.Error("known after no time")
	}
	for _, text := range []string{"", "x", "-1", "18446744073709551616", "1 2"} {
		set("intel-rapl:1", text)
		now += second
		if _, _, known, _, err := read(); known || err == nil {
			t.Errorf("%q: known %v, %v", text, known, err)
		}
	}
}

func TestRAPLThatCannotBeRead(t *testing.T) {
	if _, err := openRAPL(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "no RAPL") {
		t.Errorf("absent: %v", err)
	}
	if _, err := openRAPL(tree(t, map[string][3]string{"intel-rapl:2": {"psys", "5", "10"}})); err == nil || !strings.Contains(err.Error(), "no CPU package") {
		t.Errorf("no package: %v", err)
	}
	if _, err := openRAPL(tree(t, map[string][3]string{"intel-rapl:0": {"package-0", "5", "many"}})); err == nil {
		t.Error("a range that is no number")
	}
	if os.Geteuid() == 0 {
		t.Log("run as root, whom no file's mode keeps out")
		return
	}
	root := twoSockets(t)
	if err := os.Chmod(filepath.Join(root, "intel-rapl:1", "energy_uj"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := openRAPL(root); !strings.Contains(fmt.Sprint(err), "docs/power.md") {
		t.Errorf("one package is for root: %v", err)
	}
}

// TestThisMachine reads the real counters, where there are any.
func TestThisMachine(t *testing.T) {
	r, err := openRAPL(powercap)
	if err != nil {
		t.Skip(err)
	}
	defer r.close()
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	for range 2 {
		_, _, _ = r.read(clock)
		for x := 0; clock() < 100*time.Millisecond; x++ { // something to be measured
			_ = x
		}
	}
	if w, known, err := r.read(clock); err != nil || known[cpu] && (w[cpu] <= 0 || w[cpu] > 2000) {
		t.Errorf("%v %v, %v", w, known, err)
	}
}

func TestCheapReadings(t *testing.T) {
	r, err := openRAPL(twoSockets(t))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	var s series
	if n := testing.AllocsPerRun(100, func() {
		_, _, _ = r.read(clock)
		s.add(clock(), 100)
		_, _ = s.mean(clock(), time.Minute)
	}); n != 0 {
		t.Errorf("a reading allocates %v times", n)
	}
}

// BenchmarkReadHost is one reading of two packages, made every power.interval.
func BenchmarkReadHost(b *testing.B) {
	m := &Meter{config: &Config{}, log: quiet, gpuSeen: func() bool { return false }, state: state{start: time.Now(), hold: time.Minute}}
	m.raplSource.enter("starting")
	root := b.TempDir()
	for _, z := range []string{"intel-rapl:0", "intel-rapl:1"} {
		_ = os.Mkdir(filepath.Join(root, z), 0o700)
		write(b, filepath.Join(root, z, "name"), "package-0")
		write(b, filepath.Join(root, z, "energy_uj"), "1")
		write(b, filepath.Join(root, z, "max_energy_range_uj"), "262143328850")
	}
	m.openRAPL(root)
	b.ReportAllocs()
	for b.Loop() {
		m.readHost()
	}
}

// TestCombining: which source stands for the host, and when nothing does.
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
			if known != (c.watts != none) || known && (r.Watts != c.watts || r.Mean != c.watts || r.Source != c.source || r.Component != Node) {
				t.Errorf("%+v %v", r, known)
			}
			if _, sum := c.readings[dram]; known && sum && c.source == "nvml+rapl" && !r.At.Equal(s.start.Add(now-time.Duration(dram)*second)) {
				t.Errorf("a sum is as old as its oldest part: %v", r.At.Sub(s.start))
			}
		})
	}
}

// TestReadingsDoNotGoBack: a GPU reading given out twice, or late, does not move the series.
func TestReadingsDoNotGoBack(t *testing.T) {
	s := state{start: time.Now(), hold: 30 * second}
	s.add(gpu, 5*second, 100)
	s.add(gpu, 4*second, 900)
	if r, _ := s.of(gpu, 6*second); r.Watts != 100 {
		t.Errorf("%+v", r)
	}
}

// TestMeter runs all sources in virtual time but Redfish, which needs a network.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Interval: config.Duration(second), BMCInterval: config.Duration(10 * second), StaleAfter: config.Duration(30 * second), RAPL: "off", IPMIDevice: "auto"}
		var gone atomic.Bool
		m, err := New(&c, func() (float64, time.Time, bool) { return 400, time.Now(), !gone.Load() }, quiet)
		if err != nil {
			t.Fatal(err)
		}
		m.gpuSeen = func() bool { return true }
		device := &script{answers: [][]byte{golden}}
		m.ipmi = func(string) (port, error) { return device, nil }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		if r, known := m.Node(); !known || r.Watts != 250 || r.Source != "dcmi" {
			t.Errorf("%+v %v", r, known)
		}
		if list := m.Readings(); len(list) != 3 || list[0].Component != Node || list[1].Component != "system" || list[2].Component != "gpu" {
			t.Errorf("%v", list)
		}

		// The BMC stops to answer: what it said is used until it is stale, then the GPUs stand in.
		device.silent()
		time.Sleep(29 * second)
		synctest.Wait()
		if r, _ := m.Node(); r.Watts != 250 || r.Age() != 29*second {
			t.Errorf("%+v, %v old", r, r.Age())
		}
		time.Sleep(2 * second)
		synctest.Wait()
		if r, _ := m.Node(); r.Watts != 400 || r.Source != "nvml" || r.Mean != 400 {
			t.Errorf("%+v", r)
		}
		gone.Store(true)
		time.Sleep(31 * second)
		synctest.Wait()
		if r, known := m.Node(); known {
			t.Errorf("all is stale: %+v", r)
		}
		if s := m.Sources(); s[1].Name != "dcmi" || s[1].State == "ok" || s[1].Read != 1 || s[1].Fail == 0 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-done
		if !device.closed {
			t.Error("the device is left open")
		}
	})
}

func TestMeterReadsRedfish(t *testing.T) {
	s := serve(t, dmtf)
	c := Config{Interval: config.Duration(second), BMCInterval: config.Duration(second), StaleAfter: config.Duration(time.Minute), RAPL: "off", IPMIDevice: "off", Redfish: *s.settings()}
	m, err := New(&c, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	for deadline, tick := time.After(20*time.Second), time.Tick(5*time.Millisecond); ; {
		if r, known := m.Node(); known {
			if r.Watts != 374 || r.Source != "redfish" {
				t.Errorf("%+v", r)
			}
			break
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("no reading; %+v", m.Sources())
		}
	}
	cancel()
	<-done
	if _, open, _ := s.count(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// TestAutoGivesUp: a host without the device, or without DCMI, is not asked again.
func TestAutoGivesUp(t *testing.T) {
	for name, open := range map[string]func(string) (port, error){
		"absent": func(string) (port, error) { return nil, &fs.PathError{Op: "open", Path: ipmiAuto, Err: fs.ErrNotExist} },
		"denied": func(string) (port, error) {
			return nil, &fs.PathError{Op: "open", Path: ipmiAuto, Err: fs.ErrPermission}
		},
		"no DCMI": func(string) (port, error) { return &script{answers: [][]byte{{0xc1}}}, nil },
	} {
		m, err := New(&Config{Interval: config.Duration(second), BMCInterval: config.Duration(second), StaleAfter: config.Duration(second), RAPL: "off", IPMIDevice: "auto"}, nil, quiet)
		if err != nil {
			t.Fatal(err)
		}
		m.ipmi = open
		m.followDCMI(t.Context()) // returns
		if s := m.Sources()[1]; s.State == "starting" || s.Fail != 0 {
			t.Errorf("%s: %+v", name, s)
		}
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
		if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%q: %v, want %q", c.args, err, c.err)
		}
	}
	on := Config{RAPL: "on", IPMIDevice: "off"}
	_, rapl := openRAPL(powercap)
	if err := on.Examine(); (err == nil) != (rapl == nil) {
		t.Errorf("rapl on: %v, and opening it: %v", err, rapl)
	}
}

func FuzzCounter(f *testing.F) {
	for _, s := range []string{"0\n", "262143328850\n", "18446744073709551615", "18446744073709551616", "", "-1", " 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseCounter(text)
		var want uint64
		n, scanErr := fmt.Sscanf(strings.TrimRight(string(text), " \n"), "%d", &want)
		if err == nil && (n != 1 || scanErr != nil || v != want) {
			t.Errorf("%q is read as %d", text, v)
		}
	})
}
