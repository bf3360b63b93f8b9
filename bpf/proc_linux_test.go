package bpf

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestProc: without programs, the reader answers from /proc and sock_diag, and names the missing
// figures.
func TestProc(t *testing.T) {
	p := NewProc(errors.New("not today"))
	defer p.Close()
	if m := p.Missing(); len(m) < 3 || m[0].Reason != "not today" || p.Source() != SourceProc {
		t.Errorf("%+v", m)
	}
	if err := p.RunDelay(new(Histogram)); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if _, err := p.Tokens(1); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if err := p.WatchProcesses(1 << 30); err == nil {
		t.Error("a process that is not there is watched")
	}
}

// TestProcGroup compares a group with the kernel's own count, with a child that has ended.
func TestProcGroup(t *testing.T) {
	p := NewProc(nil)
	sh := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; read x")
	in := must[interface{ Close() error }](t)(sh.StdinPipe())
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	defer sh.Wait()
	defer in.Close()
	if err := p.WatchProcesses(sh.Process.Pid); err != nil {
		t.Fatal(err)
	}
	var cpu time.Duration
	within(t, "it has used a CPU", func() bool {
		cpu, _, _ = schedstat(t, sh.Process.Pid)
		return cpu > 10*time.Millisecond
	})
	cpu, delay, runs := schedstat(t, sh.Process.Pid)
	g := must[[]Group](t)(p.Groups())
	cpuAfter, delayAfter, runsAfter := schedstat(t, sh.Process.Pid)
	if len(g) != 1 || g[0].CPU < cpu || g[0].CPU > cpuAfter || g[0].Delay < delay || g[0].Delay > delayAfter ||
		g[0].Runs < runs || g[0].Runs > runsAfter {
		t.Errorf("%+v; the kernel says %v %v %d before, %v %v %d after", g, cpu, delay, runs, cpuAfter, delayAfter,
			runsAfter)
	}
	_ = in.Close()
	_ = sh.Wait()
	if after := must[[]Group](t)(p.Groups()); after[0].CPU < cpu {
		t.Errorf("what an ended process used is forgotten: %+v", after)
	}
	if err := p.UnwatchProcesses(sh.Process.Pid); err != nil || len(must[[]Group](t)(p.Groups())) != 0 {
		t.Error("it is still watched")
	}
}

// TestProcSockets: a connection to a watched port is found, and only while it is established.
func TestProcSockets(t *testing.T) {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	c := must[net.Conn](t)(net.Dial("tcp", to.String()))
	defer c.Close()
	there := must[net.Conn](t)(l.Accept())
	defer there.Close()
	must[int](t)(there.Write(make([]byte, 1000)))
	must[int](t)(c.Read(make([]byte, 1000)))
	p := NewProc(nil)
	if err := p.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	ports, err := p.Ports()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		lack(t, "the kernel has no sock_diag: "+err.Error())
	}
	if err != nil || len(ports) != 1 || ports[0].Established != 1 || ports[0].SegmentsSent != 1 ||
		ports[0].RTTLooks != 1 || ports[0].RTTSum <= 0 {
		t.Fatalf("%+v %v", ports, err)
	}
	if port, err := p.Port(to.Port()); err != nil || port.Established != 1 {
		t.Errorf("%+v %v", port, err)
	}
	_, _ = c.Close(), there.Close()
	within(t, "it is closed", func() bool { return must[Port](t)(p.Port(to.Port())).Established == 0 })
}

// TestNew: a process without the right to load gets the reader of /proc, which reports the reason.
func TestNew(t *testing.T) {
	r := New(Options{Root: t.TempDir()})
	defer r.Close()
	if r.Source() != SourceProc || r.Missing()[0].Reason == "" {
		t.Errorf("%v %+v", r.Source(), r.Missing())
	}
}

func FuzzParsers(f *testing.F) {
	message := make([]byte, diagMessageLen+8)
	message[0] = unix.AF_INET
	message[diagMessageLen], message[diagMessageLen+2] = 8, inetDiagInfo
	f.Add(message)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := parseDiag(b); err == nil && len(b) < diagMessageLen {
			t.Error("a socket of a few bytes")
		}
		if _, err := decode(b); err == nil && len(b) < 48 {
			t.Error("an event of a few bytes")
		}
	})
}
