//go:build cgo && nvml

package gpu

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestMain can run the test binary as a program that reads the library in TEST_NVML twice and
// prints the figures. Each library needs a process of its own, because symbols stay bound to the
// first library that a process loads.
func TestMain(m *testing.M) {
	if path := os.Getenv("TEST_NVML"); path != "" {
		d, err := open(path)
		if err == nil {
			_, err = d.read()
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		devices, _ := d.read()
		_ = json.NewEncoder(os.Stdout).Encode(devices)
		d.close()
		os.Exit(0)
	}
	code := m.Run()
	if built.path != "" {
		_ = os.RemoveAll(filepath.Dir(built.path))
	}
	os.Exit(code)
}

// compile builds the fake NVML with the header in go-nvml.
func compile(t testing.TB, to string, flags ...string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	args := append([]string{"-shared", "-fPIC", "-O1", "-w", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-I",
		filepath.Join(strings.TrimSpace(string(dir)), "pkg", "nvml"),
		"-o", to, "testdata/nvml.c"}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
}

var built struct {
	sync.Once
	path string
}

// fake is the fake library, with a file that holds its answers.
type fake struct {
	t    testing.TB
	file string
	says map[string]string
}

func newFake(t testing.TB) *fake {
	t.Helper()
	Library(t)
	f := &fake{t: t, file: filepath.Join(t.TempDir(), "says"), says: map[string]string{}}
	t.Setenv("NVML_FAKE", f.file)
	return f
}

// Library returns the path of the fake library, which is built once.
func Library(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		dir, err := os.MkdirTemp("", "nvml")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "libnvidia-ml.so.1")
		compile(t, path)
		built.path = path
	})
	if built.path == "" {
		t.Fatal("there is no library")
	}
	return built.path
}

// say changes answers: key, value, key, value, and so on.
func (f *fake) say(pairs ...any) {
	f.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		f.says[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	var text strings.Builder
	for k, v := range f.says {
		fmt.Fprintf(&text, "%s %s\n", k, v)
	}
	if err := os.WriteFile(f.file, []byte(text.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) open() *library {
	f.t.Helper()
	d, err := open(built.path)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		f.say("nvmlShutdown", 0, "nvmlGpmSampleFree", 0)
		d.close()
	})
	return d.(*library)
}

func read(t testing.TB, l *library) []Device {
	t.Helper()
	devices, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

// TestLayout: go-nvml's GpmMetric is as large as NVML's. GpmMetric of go-nvml v0.13.0 contains
// another structure, and is 40 times as large.
func TestLayout(t *testing.T) {
	if n := unsafe.Sizeof(nvml.GpmMetric{}); n != 40 { // the size in nvml.h
		t.Errorf("a GPM metric has %d bytes", n)
	}
}

// TestReads: every figure equals the driver's. SM utilisation is known from the second reading on.
func TestReads(t *testing.T) {
	f := newFake(t)
	f.say("count", 2, "sm1", 37.25, "sm2", 62.75, "power1", 412345, "used2", 70e9, "throttle2", 0x24)
	l := f.open()
	if first := read(t, l); len(first) != 2 || !first[0].SMPct.IsZero() {
		t.Fatalf("the first reading: %+v", first)
	}
	d := read(t, l)
	if sm := d[0].SMPct.Or(-1); sm != 37.25 {
		t.Errorf("SM %v", sm)
	} else if d[0].Watts.Or(-1) != 412.345 || d[1].MemoryUsed.Or(-1) != 70e9 || d[1].Memory.Or(-1) != 80e9 ||
		d[0].BusyPct.Or(-1) != 100 {
		t.Errorf("%+v", d)
	}
	if got := Load(Select(nil, d, nil, 0, 2)).SMPct; got.Or(-1) != 50 {
		t.Errorf("mean of both %v", got)
	}
	if got := Watts(d); got.Or(-1) != 412.345+350.5 {
		t.Errorf("power of both %v", got)
	}
	if Memory(d) != 160e9 {
		t.Errorf("memory of both %d", Memory(d))
	}
	var reasons []string
	d[1].Throttle.Each(func(r string, holds bool) {
		if holds {
			reasons = append(reasons, r)
		}
	})
	if !d[1].HasThrottle || fmt.Sprint(reasons) != "[sw_power_cap sw_thermal]" {
		t.Errorf("throttled by %v", reasons)
	}
}

// TestMIG: instances have their own SM utilisation and memory; only the GPU has power.
func TestMIG(t *testing.T) {
	f := newFake(t)
	f.say("count", 2, "mig2", 2, "nvmlGpmSampleGet", 0, "total200", 40e9, "total201", 20e9)
	l := f.open()
	read(t, l)
	d := read(t, l)
	if len(d) != 4 || d[1].Name != "1" || !d[1].Split || d[2].Name != "1:5" || d[3].Name != "1:6" ||
		d[3].UUID != "MIG-0201" {
		t.Fatalf("%+v", d)
	}
	if d[2].SMPct.Or(-1) != 35 || d[3].SMPct.Or(-1) != 36 {
		t.Errorf("SM of the instances %v %v", d[2].SMPct, d[3].SMPct)
	}
	if !d[2].Watts.IsZero() || !d[2].BusyPct.IsZero() || Watts(d).Or(-1) != 701 {
		t.Errorf("an instance has the GPU's power: %+v", d[2])
	}
	picked := Select(nil, d, []string{"1:6", "mig-0200"}, 0, 0)
	if len(picked) != 2 || Load(picked).SMPct.Or(-1) != 35.5 || Memory(picked) != 60e9 {
		t.Errorf("picked %+v", picked)
	}
	if len(Select(nil, d, []string{"1:6", "1:7"}, 0, 0)) != 0 {
		t.Error("a part passes for the whole")
	}

	// A destroyed instance is missing from the next reading.
	f.say("mig2", 1, "fail201", 2)
	read(t, l)
	if d := read(t, l); len(d) != 3 || d[2].SMPct.Or(-1) != 35 {
		t.Errorf("after one instance is gone: %+v", d)
	}
}

// TestMonitorWithLibrary: readings end and return with the driver.
func TestMonitorWithLibrary(t *testing.T) {
	f := newFake(t)
	m := New(&Config{NVML: "auto", Library: built.path, Interval: 1e8}, slog.New(slog.DiscardHandler))
	if d := m.Devices(); d != nil || m.State() != "starting" {
		t.Errorf("%v %s", d, m.State())
	}
	l := f.open()
	for range 2 {
		read(t, l)
	}
	f.say("nvmlDeviceGetCount_v2", 9)
	l.listed = l.listed.AddDate(-1, 0, 0)
	if err := m.follow(t.Context(), l); err == nil {
		t.Error("a lost driver is followed")
	}
	f.say("nvmlDeviceGetCount_v2", 0)
}

// BenchmarkRead is one reading of 8 GPUs. The library answers from a file, so the agent's own cost
// is less than the result.
func BenchmarkRead(b *testing.B) {
	f := newFake(b)
	f.say("count", 8)
	l := f.open()
	b.ReportAllocs()
	for b.Loop() {
		read(b, l)
	}
}
