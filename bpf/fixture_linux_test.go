package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Environment of the test binary run as a child.
const (
	childEnv = "BPF_TEST_CHILD"  // job of the child
	rootEnv  = "BPF_TEST_ROOT"   // root for its pins
	groupEnv = "BPF_TEST_CGROUP" // cgroup to attach to
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := children[job](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// lack skips the test. lack fails if BPF_REQUIRED promises that everything is available.
func lack(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("BPF_REQUIRED") == "1" {
		t.Fatalf("BPF_REQUIRED=1, but %s", why)
	}
	t.Skip(why)
}

// host is a place for a test's own programs: a BPF file system, and a cgroup that contains the
// test's process.
type host struct {
	t      testing.TB
	root   string
	cgroup string
}

func newHost(t testing.TB) *host {
	t.Helper()
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel and load on its CPUs: make check-bpf")
	}
	if os.Geteuid() != 0 {
		lack(t, "it needs root, to load programs into the kernel")
	}
	if err := Permitted(); err != nil {
		lack(t, err.Error())
	}
	fs := t.TempDir()
	if err := unix.Mount("bpf", fs, "bpf", 0, ""); err != nil {
		lack(t, "no BPF file system can be mounted: "+err.Error())
	}
	h := &host{t: t, root: filepath.Join(fs, "cognitora"), cgroup: ownCgroup(t)}
	t.Cleanup(func() {
		if _, err := Clean(h.root); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(fs, 0); err != nil {
			t.Error(err)
		}
	})
	return h
}

// ownCgroup moves the process into a cgroup of its own, and back at the end of the test.
func ownCgroup(t testing.TB) string {
	t.Helper()
	top, err := cgroupFolder("")
	if err != nil {
		lack(t, err.Error())
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	was := "/"
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			was = path
		}
	}
	own, err := os.MkdirTemp(top, "bpf-test-")
	if err != nil {
		lack(t, "no cgroup can be made: "+err.Error())
	}
	if err := os.Chmod(own, 0o755); err != nil { // the mode of other cgroups
		t.Fatal(err)
	}
	move(t, own)
	t.Cleanup(func() {
		move(t, filepath.Join(top, was))
		// A killed child leaves its cgroup a moment after it could be waited for.
		within(t, "the cgroup is empty", func() bool { return os.Remove(own) == nil })
	})
	return own
}

func move(t testing.TB, cgroup string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Fatal(err)
	}
}

// load loads the programs into the host's own place. load fails if a hook is missing.
func (h *host) load() *Set {
	h.t.Helper()
	s, err := Load(Options{Root: h.root, Cgroup: h.cgroup})
	if err != nil {
		h.t.Fatalf("%+v", err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	for _, m := range s.Missing() {
		h.t.Errorf("%s: %s", m.What, m.Reason)
	}
	return s
}

// within waits until done returns true, and fails the test if that takes too long.
func within(t testing.TB, what string, done func() bool) {
	t.Helper()
	bound := time.Duration(times(1, 5)) * time.Minute
	for end := time.Now().Add(bound); !done(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", bound, what)
		}
		yield()
	}
}

// yield lets other threads run.
func yield() {
	var p []unix.PollFd
	_, _ = unix.Poll(p, 1)
}

func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (h *host) port(s *Set, port uint16) Port {
	h.t.Helper()
	for _, p := range must[[]Port](h.t)(s.Ports()) {
		if p.Port == port {
			return p
		}
	}
	h.t.Fatalf("port %d is not there", port)
	return Port{}
}

func (h *host) delay(s *Set) (d Histogram) {
	h.t.Helper()
	if err := s.RunDelay(&d); err != nil {
		h.t.Fatal(err)
	}
	return d
}

// noDrops fails the test if the programs could not count something.
func (h *host) noDrops(s *Set) {
	h.t.Helper()
	if d := must[Drops](h.t)(s.Drops()); d != (Drops{}) {
		h.t.Errorf("dropped: %+v", d)
	}
}

// stats turns on the kernel's clock of programs until the test ends.
func stats(t testing.TB) {
	t.Helper()
	on, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		lack(t, "the kernel does not measure programs: "+err.Error())
	}
	t.Cleanup(func() { _ = on.Close() })
}
