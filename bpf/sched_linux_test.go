package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// script runs a shell script on one CPU until the test ends.
func (h *host) script(cpu int, script string) *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // kills the processes that the script started, too
		_ = cmd.Wait()
	})
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
		h.t.Fatal(err)
	}
	return cmd
}

// schedstat returns the CPU time, waits and runs of all threads of a process by the kernel's own
// count.
func schedstat(t testing.TB, pid int) (cpu, delay time.Duration, runs uint64) {
	t.Helper()
	tasks := filepath.Join("/proc", strconv.Itoa(pid), "task")
	for _, task := range must[[]os.DirEntry](t)(os.ReadDir(tasks)) {
		f := strings.Fields(string(must[[]byte](t)(os.ReadFile(filepath.Join(tasks, task.Name(), "schedstat")))))
		cpu += time.Duration(must[int64](t)(strconv.ParseInt(f[0], 10, 64)))
		delay += time.Duration(must[int64](t)(strconv.ParseInt(f[1], 10, 64)))
		runs += uint64(must[int64](t)(strconv.ParseInt(f[2], 10, 64)))
	}
	return cpu, delay, runs
}

func (h *host) group(s *Set, root int) Group {
	h.t.Helper()
	for _, g := range must[[]Group](h.t)(s.Groups()) {
		if g.Root == root {
			return g
		}
	}
	h.t.Fatalf("group %d is not there", root)
	return Group{}
}

// near checks that got lies between two readings of the kernel's own count, within 2 %. One reading
// ended before got was read, and the other began after.
func near(t testing.TB, what string, got, least, most time.Duration) {
	t.Helper()
	t.Logf("%s: %v, the kernel's own count %v to %v", what, got, least, most)
	if float64(got) < 0.98*float64(least) || float64(got) > 1.02*float64(most) {
		t.Errorf("%s is %v, not %v to %v", what, got, least, most)
	}
}

const hog = "while :; do :; done"

// TestGroup compares the CPU time and waits of two processes on one CPU with the kernel's own
// count.
func TestGroup(t *testing.T) {
	h := newHost(t)
	s := h.load()
	one, two := h.script(0, hog), h.script(0, hog)
	roots := []int{one.Process.Pid, two.Process.Pid}
	for _, root := range roots {
		if err := s.WatchProcesses(root); err != nil {
			t.Fatal(err)
		}
		// The map has the group once a process of the group has run.
		within(t, "the group runs", func() bool { return h.group(s, root).Runs > 2 })
	}
	before := h.delay(s)
	type count struct {
		cpu, delay, cpuBefore, delayBefore, cpuAfter, delayAfter time.Duration
	}
	read := func(root int) (c count) {
		c.cpuBefore, c.delayBefore, _ = schedstat(t, root)
		g := h.group(s, root)
		c.cpuAfter, c.delayAfter, _ = schedstat(t, root)
		c.cpu, c.delay = g.CPU, g.Delay
		return c
	}
	from := []count{read(roots[0]), read(roots[1])}
	within(t, "each has run for 1 s", func() bool {
		return h.group(s, roots[0]).CPU > from[0].cpu+time.Second && h.group(s, roots[1]).CPU > from[1].cpu+time.Second
	})
	for i, root := range roots {
		to := read(root)
		near(t, "CPU time", to.cpu-from[i].cpu, to.cpuBefore-from[i].cpuAfter, to.cpuAfter-from[i].cpuBefore)
		near(t, "run-queue delay", to.delay-from[i].delay, to.delayBefore-from[i].delayAfter,
			to.delayAfter-from[i].delayBefore)
	}
	d := h.delay(s).Since(before)
	if q := d.Quantile(0.99); q < time.Millisecond {
		t.Errorf("of two that share a CPU, the longest waits of %d were %v", d.Count, q)
	}
	h.noDrops(s)
}

// TestUtilisation: the CPUs' times add up to the elapsed time, and a CPU with a busy process is
// busy.
func TestUtilisation(t *testing.T) {
	h := newHost(t)
	s := h.load()
	h.script(0, hog)
	within(t, "all CPUs have switched", func() bool {
		return len(must[[]CPU](t)(s.CPUs())) > 0 && must[[]CPU](t)(s.CPUs())[0].ID == 0
	})
	began := time.Now()
	from := must[[]CPU](t)(s.CPUs())
	later := time.Now()
	within(t, "a second is over", func() bool { return time.Since(began) > time.Second })
	least := time.Since(later)
	to := must[[]CPU](t)(s.CPUs())
	all, most := to[0].Busy+to[0].Idle-from[0].Busy-from[0].Idle, time.Since(began)
	near(t, "busy and idle time of CPU 0", all, least, most)
	share := float64(to[0].Busy-from[0].Busy) / float64(all)
	if share < 0.98 {
		t.Errorf("CPU 0 was busy for %.1f %% of the time", 100*share)
	}
	if to[0].Switches == from[0].Switches {
		t.Error("no switch was counted")
	}
}

// TestFollows: children and their children belong to the group, including those that existed
// before. Children leave the group when they end.
func TestFollows(t *testing.T) {
	h := newHost(t)
	s := h.load()
	go1, go2 := filepath.Join(t.TempDir(), "go"), filepath.Join(t.TempDir(), "go")
	for _, fifo := range []string{go1, go2} {
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	busy := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", times(200_000, 20_000))
	// One child exists when the group is made. Later the child and the script start others, which
	// use the CPU and end.
	sh := h.script(0, "(read x < "+go1+"; ("+busy+")) & read x < "+go2+"; ("+busy+"); wait; read x < "+go2)
	root := sh.Process.Pid
	within(t, "the child is there", func() bool { return len(descendants(root)) == 1 })
	if err := s.WatchProcesses(root); err != nil {
		t.Fatal(err)
	}
	if n := h.members(s, root); n != 2 {
		t.Errorf("%d processes are in the group, not 2", n)
	}
	before := h.group(s, root)
	for _, fifo := range []string{go1, go2} {
		if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	within(t, "only the root is left", func() bool { return len(descendants(root)) == 0 && h.members(s, root) == 1 })
	after := h.group(s, root)
	stat := strings.Fields(string(must[[]byte](t)(os.ReadFile(filepath.Join("/proc", strconv.Itoa(root), "stat")))))
	// time of children that were waited for
	ticks := must[int](t)(strconv.Atoi(stat[15])) + must[int](t)(strconv.Atoi(stat[16]))
	used, want := after.CPU-before.CPU, time.Duration(ticks)*10*time.Millisecond
	t.Logf("the group used %v; /proc says %v of its children", used, want)
	if used < want*9/10 || used < 50*time.Millisecond {
		t.Errorf("the group used %v", used)
	}
	if err := s.UnwatchProcesses(root); err != nil {
		t.Fatal(err)
	}
	if n := h.members(s, root); n != 0 || len(must[[]Group](t)(s.Groups())) != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// members returns the number of processes of a group.
func (h *host) members(s *Set, root int) (n int) {
	h.t.Helper()
	var pid, of uint32
	var per []schedGroup
	all := s.maps["cgn_processes"].Iterate()
	for all.Next(&pid, &of) {
		if s.maps["cgn_groups"].Lookup(of, &per) == nil && per[0].Root == uint64(root) {
			n++
		}
	}
	return n
}
