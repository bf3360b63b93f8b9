package power

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree makes a directory like /sys/class/powercap.
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

// twoSockets is a server with two packages and their parts, a zone that is no package, and a
// repetition of the packages.
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

	// A reset counter looks like a wrapped counter. No package draws 60 kJ in a second.
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

	// A counter may wrap twice between two readings that are this far apart.
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
	if _, err := openRAPL(tree(t, map[string][3]string{"intel-rapl:2": {"psys", "5", "10"}})); err == nil ||
		!strings.Contains(err.Error(), "no CPU package") {
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

// TestThisMachine reads the machine's real counters, if it has any.
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
		for x := 0; clock() < 100*time.Millisecond; x++ { // uses energy that can be measured
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
	m := &Meter{config: &Config{}, log: quiet, gpuSeen: func() bool { return false },
		state: state{start: time.Now(), hold: time.Minute}}
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

func FuzzCounter(f *testing.F) {
	for _, s := range []string{"0\n", "262143328850\n", "18446744073709551615", "18446744073709551616", "", "-1",
		" 1"} {
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
