package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestBPF checks show, top, check and clean on a BPF file system of the test.
func TestBPF(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cognitora")
	if _, err := ctl(t, nil, "bpf", "show", "--root", root); err == nil || ctltest.Hint(err) == "" {
		t.Errorf("nothing is loaded: %v", err)
	}
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel: make check-bpf")
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("no BPF file system can be mounted: ", err)
	}
	defer unix.Unmount(dir, 0)
	defer bpf.Clean(root)
	own, err := os.MkdirTemp(cgroups(t), "ctl-test-")
	if err != nil {
		t.Fatal("no cgroup can be made: ", err)
	}
	defer os.Remove(own)
	s, err := bpf.Load(bpf.Options{Root: root, Cgroup: own})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(s.WatchPort(8000), s.WatchProcesses(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := ctl(t, nil, append(append([]string{"bpf"}, args...), "--root", root)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	ctltest.Want(t, run("show"), "BUSY", "waits for a CPU", "PROCESSES OF", "8000", "TTFT MEAN", "COALESCED",
		"SEGMENTS")
	ctltest.Want(t, run("top", "--interval", "100ms"), "in the last 1", "BUSY")
	live := onTerminal(t, 80, 12, "bpf", "top", "--root", root, "--interval", "100ms")
	live.frame("at first")
	live.until("a second", func() bool { return strings.HasPrefix(live.screen()[0], "in the last ") && !live.inFrame })
	wantLines(t, live.screen(), "BUSY", "waits for a CPU", "enlarge the terminal or use bpf show")
	ctltest.Want(t, run("check"), "cgn_switch", "sched_switch", "CGroupInetIngress", "yes", "lost: 0 events")
	var k struct {
		CPUs []struct{ Busy int64 } `json:"cpus"`
	}
	if err := json.Unmarshal([]byte(run("show", "-o", "json")), &k); err != nil || len(k.CPUs) == 0 {
		t.Errorf("%v %+v", err, k)
	}
	if err := os.Remove(filepath.Join(root, "links", "switch")); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl(t, nil, "bpf", "check", "--root", root); err == nil || ctltest.Hint(err) == "" {
		t.Errorf("a program is not attached: %v", err)
	}
	ctltest.Want(t, run("clean"), "pins removed")
	ctltest.Want(t, run("clean"), "0 pins removed")
}

// cgroups returns the path of the cgroup v2 hierarchy.
func cgroups(t *testing.T) string {
	for _, at := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(at, "cgroup.procs")); err == nil {
			return at
		}
	}
	t.Fatal("no cgroups of version 2 are mounted")
	return ""
}
