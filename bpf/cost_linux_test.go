package bpf

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// costs returns the present runs and run times of the programs, by name.
func (h *host) costs() map[string]Program {
	h.t.Helper()
	all := map[string]Program{}
	for _, p := range must[[]Program](h.t)(Programs(h.root)) {
		all[p.Name] = p
	}
	return all
}

// report logs the cost of a run of each program since before.
func (h *host) report(before map[string]Program, names ...string) {
	b := h.t.(*testing.B)
	now := h.costs()
	for _, name := range names {
		if runs := now[name].Runs - before[name].Runs; runs > 0 {
			b.ReportMetric(float64(now[name].RunTime-before[name].RunTime)/float64(runs), "ns/"+name)
		}
	}
}

// BenchmarkSwitch measures the program at context switches with the kernel's clock of programs. The
// figure includes the cost of the clock, which "empty" measures. Two threads take turns on a CPU.
func BenchmarkSwitch(b *testing.B) {
	h := newHost(b)
	s := h.load()
	stats(b)
	for _, name := range []string{"counting", "group", "empty"} {
		switch name {
		case "group":
			if err := s.WatchProcesses(os.Getpid()); err != nil {
				b.Fatal(err)
			}
		case "empty":
			if err := s.maps["cgn_to_switch"].Delete(uint32(0)); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(name, func(b *testing.B) {
			h := &host{t: b, root: h.root, cgroup: h.cgroup}
			before := h.costs()
			takeTurns(b)
			h.report(before, "cgn_switch")
		})
	}
}

// takeTurns makes two threads on CPU 0 wake each other b.N times.
func takeTurns(b *testing.B) {
	var there, back [2]int
	if err := unix.Pipe2(there[:], unix.O_CLOEXEC); err != nil {
		b.Fatal(err)
	}
	if err := unix.Pipe2(back[:], unix.O_CLOEXEC); err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{}, 2)
	turn := func(read, write int, first bool) {
		defer func() { done <- struct{}{} }()
		runtime.LockOSThread() // not unlocked, so the thread ends together with its CPU affinity
		var one unix.CPUSet
		one.Set(0)
		_ = unix.SchedSetaffinity(0, &one) // measured even if this fails
		c := []byte{0}
		for i := range b.N {
			if i > 0 || !first {
				if _, err := unix.Read(read, c); err != nil {
					return
				}
			}
			if _, err := unix.Write(write, c); err != nil {
				return
			}
		}
	}
	go turn(there[0], back[1], false)
	go turn(back[0], there[1], true)
	<-done
	<-done
	for _, fd := range append(there[:], back[:]...) {
		_ = unix.Close(fd)
	}
}

// BenchmarkPackets measures the programs at packets: of a socket that is not counted, of a watched
// port with its peer, and of new connections.
func BenchmarkPackets(b *testing.B) {
	h := newHost(b)
	s := h.load()
	stats(b)
	l := must[net.Listener](b)(net.Listen("tcp", "127.0.0.1:0"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 400)
			for {
				n, err := c.Read(buf)
				if err != nil {
					break
				}
				if _, err := c.Write(buf[:n]); err != nil {
					break
				}
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = l.Close(); <-ended }()
	if err := s.WatchPort(uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		b.Fatal(err)
	}
	b.Run("counted", func(b *testing.B) {
		h := &host{t: b, root: h.root, cgroup: h.cgroup}
		before := h.costs()
		c := must[net.Conn](b)(net.Dial("tcp", l.Addr().String()))
		defer c.Close()
		buf := append([]byte("POST / HTTP/1.1\r\n"), make([]byte, 300)...)
		for range b.N {
			must[int](b)(c.Write(buf))
			must[int](b)(c.Read(buf))
		}
		h.report(before, "cgn_skb_in", "cgn_skb_out")
	})
	b.Run("connections", func(b *testing.B) {
		h := &host{t: b, root: h.root, cgroup: h.cgroup}
		before := h.costs()
		for range b.N {
			c := must[net.Conn](b)(net.Dial("tcp", l.Addr().String()))
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		h.report(before, "cgn_sockops", "cgn_set_state")
	})
}

// TestBpftool: bpftool prints the maps that Go reads, with the same names.
func TestBpftool(t *testing.T) {
	tool, err := exec.LookPath("bpftool")
	if err != nil {
		if tool = "/usr/sbin/bpftool"; !exists(tool) {
			t.Skip("it needs bpftool (apt-get install bpftool)")
		}
	}
	h := newHost(t)
	s := h.load()
	if err := s.WatchPort(8000); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []byte {
		t.Helper()
		out, err := exec.Command(tool, append([]string{"-j"}, args...)...).Output()
		if err != nil {
			t.Fatalf("bpftool %v: %v: %s", args, err, out)
		}
		return out
	}
	var ports []struct {
		Formatted struct {
			Key   struct{ Port int }
			Value map[string]any
		}
	}
	if err := json.Unmarshal(run("map", "dump", "pinned", s.Path("ports")), &ports); err != nil || len(ports) != 1 {
		t.Fatal(err, ports)
	}
	p := ports[0].Formatted
	if _, ok := p.Value["bytes_sent"]; !ok || p.Key.Port != 8000 {
		t.Errorf("%+v", p)
	}
	var cpus []struct {
		Formatted struct {
			Values []struct {
				CPU   int
				Value map[string]uint64
			}
		}
	}
	if err := json.Unmarshal(run("map", "dump", "pinned", s.Path("cpus")), &cpus); err != nil || len(cpus) != 1 {
		t.Fatal(err, cpus)
	}
	if _, ok := cpus[0].Formatted.Values[0].Value["busy_ns"]; !ok {
		t.Errorf("%+v", cpus)
	}
	var prog struct {
		Name string
		Tag  string
	}
	if err := json.Unmarshal(run("prog", "show", "pinned", filepath.Join(h.root, progsDir, "on_switch")),
		&prog); err != nil || prog.Name != "cgn_on_switch" {
		t.Errorf("%v %+v", err, prog)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
