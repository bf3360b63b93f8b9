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

// Threads of the load that is known: burners, as many as the environment says, that never rest, and
// sleepers that work for a moment and rest for another.
const (
	burnersEnv = "BPF_TEST_BURNERS"
	sleepers   = 4
	rests      = time.Millisecond
	works      = 200 * time.Microsecond
)

// burn is a child with these threads, all on one CPU, until it is killed.
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
					_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(rests)}, nil) // a signal makes it rest less
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

// burning starts that child and has its group watched.
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

// usage is what a group used, and the kernel's own count just before and after it was read.
type usage struct{ group, before, after Group }

func (h *host) usage(s *Set, root int) (u usage) {
	h.t.Helper()
	u.before.CPU, u.before.Delay, u.before.Runs = schedstat(h.t, root)
	u.group = h.group(s, root)
	u.after.CPU, u.after.Delay, u.after.Runs = schedstat(h.t, root)
	return u
}

// used waits until the group has used a CPU for long enough that what two looks cannot tell is
// little.
func (h *host) used(s *Set, root int, from usage) {
	h.t.Helper()
	enough := time.Duration(times(3000, 1500)) * time.Millisecond
	within(h.t, "the group has used a CPU", func() bool { return h.group(s, root).CPU > from.group.CPU+enough })
}

// unticked is the most that the kernel's own count of CPU time is behind: it learns of the thread
// that runs at ticks, which are late on an emulated CPU.
const unticked = 20 * time.Millisecond

// agree holds what a group used between two looks to the kernel's own counts.
func agree(t testing.TB, from, to usage) {
	t.Helper()
	near(t, "CPU time", to.group.CPU-from.group.CPU, to.before.CPU-from.after.CPU-unticked,
		to.after.CPU-from.before.CPU+unticked)
	near(t, "run-queue delay", to.group.Delay-from.group.Delay, to.before.Delay-from.after.Delay,
		to.after.Delay-from.before.Delay)
	near(t, "waits (each as 1 ns)", time.Duration(to.group.Runs-from.group.Runs),
		time.Duration(to.before.Runs-from.after.Runs), time.Duration(to.after.Runs-from.before.Runs))
}

// TestAccuracy holds CPU time, waits and their number of a process with busy threads and such as
// sleep most of the time, on a CPU that they share with another process, to the kernel's own counts
// of the same interval: within 2 %, whatever else the machine does.
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
