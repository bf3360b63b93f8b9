package bpf

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Threads of the child with a known load: burners, whose number the environment sets, never rest;
// sleepers alternate between work and rest.
const (
	burnersEnv = "BPF_TEST_BURNERS"
	sleepers   = 4
	rests      = time.Millisecond
	works      = 200 * time.Microsecond
)

// burn is a child that runs these threads on one CPU until it is killed.
func burn() error {
	burners, err := strconv.Atoi(os.Getenv(burnersEnv))
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(burners + sleepers + 2)
	var one unix.CPUSet
	one.Set(0)
	placed := make(chan error)
	for i := range burners + sleepers {
		go func() {
			runtime.LockOSThread()
			placed <- unix.SchedSetaffinity(0, &one)
			for {
				spin(works)
				if i >= burners {
					_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(rests)}, nil) // a signal shortens the rest
				}
			}
		}()
	}
	for range burners + sleepers {
		if err := <-placed; err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

// burning starts the burn child and watches its group.
func (h *host) burning(s *Set, burners int) (root int) {
	h.t.Helper()
	cmd := h.child("burn", burnersEnv+"="+strconv.Itoa(burners))
	must[any](h.t)(cmd.StdinPipe())
	out := bufio.NewReader(must[io.Reader](h.t)(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		h.t.Fatalf("%q %v", line, err)
	}
	root = cmd.Process.Pid
	if err := s.WatchProcesses(root); err != nil {
		h.t.Fatal(err)
	}
	within(h.t, "the group runs", func() bool { return h.group(s, root).Runs > 2 })
	return root
}

// usage is a group's usage, and the kernel's own count just before and just after the group was
// read.
type usage struct{ group, before, after Group }

func (h *host) usage(s *Set, root int) (u usage) {
	h.t.Helper()
	u.before.CPU, u.before.Delay, u.before.Runs = schedstat(h.t, root)
	u.group = h.group(s, root)
	u.after.CPU, u.after.Delay, u.after.Runs = schedstat(h.t, root)
	return u
}

// used waits until the group has used a CPU for so long that the inaccuracy of two looks is small.
func (h *host) used(s *Set, root int, from usage) {
	h.t.Helper()
	enough := time.Duration(times(3000, 1500)) * time.Millisecond
	within(h.t, "the group has used a CPU", func() bool { return h.group(s, root).CPU > from.group.CPU+enough })
}

// unticked is the largest lag of the kernel's own count of CPU time. The kernel counts a running
// thread's time at ticks, which are late on an emulated CPU.
const unticked = 20 * time.Millisecond

// agree compares a group's usage between two looks with the kernel's own counts.
func agree(t testing.TB, from, to usage) {
	t.Helper()
	near(t, "CPU time", to.group.CPU-from.group.CPU, to.before.CPU-from.after.CPU-unticked,
		to.after.CPU-from.before.CPU+unticked)
	near(t, "run-queue delay", to.group.Delay-from.group.Delay, to.before.Delay-from.after.Delay,
		to.after.Delay-from.before.Delay)
	near(t, "waits (each as 1 ns)", time.Duration(to.group.Runs-from.group.Runs),
		time.Duration(to.before.Runs-from.after.Runs), time.Duration(to.after.Runs-from.before.Runs))
}

// TestAccuracy compares the CPU time, the waits and the number of waits of a process with the
// kernel's own counts of the same interval. The figures must agree within 2 %, whatever else runs
// on the machine. The process has busy threads and mostly sleeping ones, and shares its CPU with
// another process.
func TestAccuracy(t *testing.T) {
	h := newHost(t)
	s := h.load()
	h.script(0, hog)
	root := h.burning(s, 3)
	from := h.usage(s, root)
	h.used(s, root, from)
	agree(t, from, h.usage(s, root))
	h.noDrops(s)
}
