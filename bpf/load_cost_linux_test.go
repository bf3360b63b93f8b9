package bpf

import (
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The load for which the cost of all programs is reported.
const (
	loadSwitches = 20_000 // per second, on the whole host
	loadPackets  = 10_000 // per second, in and out of counted sockets, with the events of sockops
)

// bounce returns a function that gives CPU 0 to another thread and takes it back, n times. Each
// time makes two switches and two wakeups. The function's caller must run on CPU 0.
func bounce(t testing.TB) func(n int) {
	var there, back [2]int
	for _, p := range []*[2]int{&there, &back} {
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	var one unix.CPUSet
	one.Set(0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // not unlocked, so the thread ends together with its CPU affinity
		_ = unix.SchedSetaffinity(0, &one)
		for c := []byte{0}; ; {
			if n, err := unix.Read(there[0], c); n != 1 || err != nil {
				return
			}
			if _, err := unix.Write(back[1], c); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = unix.Close(there[1])
		<-ended
		for _, fd := range []int{there[0], back[0], back[1]} {
			_ = unix.Close(fd)
		}
	})
	c := []byte{0}
	return func(n int) {
		for range n {
			must[int](t)(unix.Write(there[1], c))
			must[int](t)(unix.Read(back[0], c))
		}
	}
}

// exchanges returns a function that does n exchanges over a counted connection of a watched port: a
// request of 300 bytes, and its answer.
func exchanges(t testing.TB, s *Set) func(n int) {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	if err := s.WatchPort(uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 400); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	c := must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))
	t.Cleanup(func() { _ = c.Close(); _ = l.Close(); <-ended })
	b := append([]byte("POST / HTTP/1.1\r\n"), make([]byte, 283)...)
	return func(n int) {
		for range n {
			must[int](t)(c.Write(b))
			must[int](t)(c.Read(b))
		}
	}
}

// cost holds the run time of all programs, and the number of runs of those at switches and at
// sockets.
type cost struct {
	time              time.Duration
	switches, packets uint64
}

func (h *host) cost() (c cost) {
	for name, p := range h.costs() {
		c.time += p.RunTime
		switch {
		case strings.HasSuffix(name, "switch"):
			c.switches += p.Runs
		case strings.Contains(name, "skb") || name == "cgn_sockops":
			c.packets += p.Runs
		}
	}
	return c
}

// costTimes is the largest allowed mean cost of a run of a program. costTimes is a multiple of the
// cost of an empty program at switches in the same test. The measured cost of programs is between a
// fifth and a third of costTimes. The two costs include taking the time. On an emulated CPU the
// cost is not checked.
const costTimes = 20

// TestCostOfLoad runs all programs at 20,000 switches and 10,000 packets a second, and reports
// their share of a core. The share includes the cost of the kernel's clock of programs. The target
// is 0.75 %. The test fails if a run costs more than costTimes allows.
func TestCostOfLoad(t *testing.T) {
	h := newHost(t)
	s := h.load()
	stats(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	one.Set(0)
	turn, exchange := bounce(t), exchanges(t, s)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	delay := h.delay(s)
	run := func(wanted time.Duration) (from, now cost, took float64) {
		from, start := h.cost(), time.Now()
		for now = from; time.Since(start) < wanted; now = h.cost() {
			<-tick.C
			lack := func(rate float64, done uint64) int {
				return max(int(rate*time.Since(start).Seconds())-int(done), 0)
			}
			turn(lack(loadSwitches, now.switches-from.switches) / 2)
			exchange(lack(loadPackets, now.packets-from.packets) / 5)
		}
		return from, now, time.Since(start).Seconds()
	}
	from, now, took := run(time.Duration(times(5000, 1000)) * time.Millisecond)
	switches, packets := float64(now.switches-from.switches)/took, float64(now.packets-from.packets)/took
	pct := 100 * (now.time - from.time).Seconds() / took
	waited := h.delay(s).Since(delay).Quantile(0.99)
	each := (now.time - from.time) / time.Duration(now.switches-from.switches+now.packets-from.packets)
	if err := s.maps["cgn_to_switch"].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	before := h.costs()["cgn_switch"]
	run(time.Second)
	after := h.costs()["cgn_switch"]
	nothing := (after.RunTime - before.RunTime) / time.Duration(after.Runs-before.Runs)
	t.Logf("%.0f switches/s and %.0f packets/s: all programs take %.2f %% of a core", switches, packets, pct)
	t.Logf("%v a run; one that does nothing %v; 99 %% of the host's waits for a CPU were within %v",
		each, nothing, waited)
	if each <= 0 || each > costTimes*nothing && !testing.Short() {
		t.Errorf("a run takes %v, and one that does nothing %v", each, nothing)
	}
}
