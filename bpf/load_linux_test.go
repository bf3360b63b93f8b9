package bpf

import (
	"bufio"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/netpath"
)

// child is the test binary with a job.
func (h *host) child(job string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childEnv+"="+job, rootEnv+"="+h.root, groupEnv+"="+h.cgroup), env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// connections exchanges bytes over n connections.
func connections(t testing.TB, at *netpath.Side, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		c, err := dial(t, at, to)
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, c, 1000)
	}
}

// times is a number, and another one with -short, which is for emulated machines.
func times(often, short int) int {
	if testing.Short() {
		return short
	}
	return often
}

// TestKilled: what has been counted stays when the process that loaded the programs is killed, and counting goes on without it.
func TestKilled(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	owner := h.child("own", portEnv+"="+strconv.Itoa(int(to.Port())))
	must[any](t)(owner.StdinPipe())
	out := bufio.NewReader(must[interface{ Read([]byte) (int, error) }](t)(owner.StdoutPipe()))
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	connections(t, p.A, to, 7)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed
	connections(t, p.A, to, 5)
	s := h.load()
	if r := s.Report(); len(r.Made)+len(r.Attached)+len(r.Replaced) != 0 || len(r.Reused) != len(s.maps) {
		t.Errorf("%+v", r)
	}
	connections(t, p.A, to, 3)
	within(t, "all are counted", func() bool { return h.port(s, to.Port()).Closed == 15 })
	if one, err := s.Port(to.Port()); err != nil || one != h.port(s, to.Port()) {
		t.Errorf("read alone the port is %+v, %v; among all %+v", one, err, h.port(s, to.Port()))
	}
	if port := h.port(s, to.Port()); port.Opened != 15 || port.BytesReceived != 15_000 || port.BytesSent != 15_000 {
		t.Errorf("%+v", port)
	}
	if k := must[Tokens](t)(s.Tokens(to.Port())); k.Unmeasured != 15 {
		t.Errorf("%+v", k)
	}
}

// other makes every program another one that does the same.
func other(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		p.Instructions = slices.Insert(slices.Clone(p.Instructions), 1, asm.Mov.Imm(asm.R0, 0))
	}
}

// wider makes the layout of a map another one.
func wider(spec *ebpf.CollectionSpec) {
	other(spec)
	for _, name := range []string{"cgn_ports", "cgn_groups"} {
		m := spec.Maps[name]
		t := m.Value.(*btf.Struct)
		wide := *t
		wide.Members = append(slices.Clone(t.Members), btf.Member{Name: "new_field", Type: &btf.Int{Name: "__u64", Size: 8}, Offset: btf.Bits(t.Size * 8)})
		wide.Size += 8
		m.Value, m.ValueSize = &wide, wide.Size
	}
}

// busy keeps connections going until stop, and counts them.
type busy struct {
	made atomic.Uint64
	stop atomic.Bool
	done chan struct{}
}

func keepBusy(t *testing.T, at *netpath.Side, to netip.AddrPort) *busy {
	b := &busy{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for !b.stop.Load() {
			c, err := dial(t, at, to)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Write(make([]byte, 100)); err != nil {
				t.Error(err)
			}
			_ = c.Close()
			b.made.Add(1)
		}
	}()
	return b
}

func (b *busy) end() { b.stop.Store(true); <-b.done }

// TestUpgrade: programs are replaced under load, and nothing is lost.
func TestUpgrade(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	b := keepBusy(t, p.A, to)
	upgrades := times(10, 2)
	for i := range upgrades {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = other
		}
		next := must[*Set](t)(Load(o))
		r := next.Report()
		_ = next.Close()
		if len(r.Replaced) != len(hooks) || len(r.Attached)+len(r.Made)+len(r.Carried) != 0 || r.Window != 0 {
			t.Errorf("%+v", r)
		}
		at := b.made.Load()
		within(t, "connections go on", func() bool { return b.made.Load() > at })
	}
	b.end()
	made := b.made.Load()
	within(t, "all are closed", func() bool { p := h.port(s, to.Port()); return p.Closed == p.Opened })
	port, peer := h.port(s, to.Port()), h.peer(s, to)
	t.Logf("%d connections during %d upgrades", made, upgrades)
	if port.Opened != made || peer.Opened != made || port.BytesReceived != made*100 {
		t.Errorf("of %d connections: %+v and %+v", made, port, peer)
	}
	h.noDrops(s)
}

// TestUpgradeOfLayout: when a map has to be made anew, it begins with what the old one has counted, but for the window that Report tells.
func TestUpgradeOfLayout(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	if err := errors.Join(s.WatchPort(to.Port()), s.WatchProcesses(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	before := h.group(s, os.Getpid()).CPU
	b := keepBusy(t, p.A, to)
	within(t, "connections begin", func() bool { return b.made.Load() > 10 })
	var during uint64
	for i := range times(4, 2) {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = wider
		}
		at := b.made.Load()
		next := must[*Set](t)(Load(o))
		during += b.made.Load() - at + 2
		r := next.Report()
		_ = next.Close()
		if len(r.Carried) != 2 || len(r.Reset) != 0 || r.Window == 0 || len(r.Attached) != 0 {
			t.Errorf("%+v", r)
		}
		t.Logf("the window was %v", r.Window)
	}
	b.end()
	s2 := h.load()
	within(t, "all that are open are closed", func() bool { p := h.port(s2, to.Port()); return p.Closed+during >= p.Opened })
	port := h.port(s2, to.Port())
	t.Logf("%d of %d connections counted; %d were made during the upgrades", port.Opened, b.made.Load(), during)
	if port.Opened > b.made.Load() || port.Opened+during < b.made.Load() {
		t.Errorf("%d of %d connections counted; %d were made during the upgrades", port.Opened, b.made.Load(), during)
	}
	if h.group(s2, os.Getpid()).CPU <= before {
		t.Error("the group's CPU time was lost")
	}
}

// TestClean: nothing is left, neither pins nor programs, and nothing to remove is no error.
func TestClean(t *testing.T) {
	h := newHost(t)
	s := h.load()
	if _, err := Open(h.root); err != nil {
		t.Fatal(err)
	}
	ids := map[ebpf.ProgramID]bool{}
	for _, hk := range hooks {
		p := must[*ebpf.Program](t)(ebpf.LoadPinnedProgram(filepath.Join(h.root, progsDir, short(hk.program)), nil))
		id, _ := must[*ebpf.ProgramInfo](t)(p.Info()).ID()
		ids[id] = true
		_ = p.Close()
	}
	n, err := Clean(h.root)
	if err != nil || n != len(s.maps)+2*len(hooks)+5 {
		t.Errorf("%d pins removed, %v", n, err)
	}
	if _, err := os.Stat(h.root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", h.root, err)
	}
	_ = s.Close()
	within(t, "all programs are gone", func() bool {
		for id := range ids {
			p, err := ebpf.NewProgramFromID(id)
			if err == nil {
				_ = p.Close()
				return false
			}
		}
		return true
	})
	if n, err := Clean(h.root); n != 0 || err != nil {
		t.Errorf("a second time: %d, %v", n, err)
	}
	var hint interface{ Hint() string }
	if _, err := Open(h.root); !errors.As(err, &hint) {
		t.Errorf("opened what is not there: %v", err)
	}
}

// TestRights: Load works for a user with the three capabilities that it names, and says what is missing without them.
func TestRights(t *testing.T) {
	const nobody = 65534
	h := newHost(t)
	fs := filepath.Dir(h.root)
	if err := errors.Join(os.Chown(fs, nobody, nobody), os.Chmod(filepath.Dir(fs), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"load", "unloaded"} {
		cmd := h.child(job)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		for _, c := range needed {
			if job == "load" {
				cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, uintptr(c.bit))
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", job, err, out)
		}
	}
}

// TestNoFileSystem: a folder that is not of a BPF file system is refused, with what to do.
func TestNoFileSystem(t *testing.T) {
	h := newHost(t)
	_, err := Load(Options{Root: filepath.Join(t.TempDir(), "x"), Cgroup: h.cgroup})
	var hint interface{ Hint() string }
	if !errors.As(err, &hint) || !strings.Contains(hint.Hint(), "mount") {
		t.Error(err)
	}
}

// TestAtOnce: loaders that start together take turns, and the later ones find what the first has made.
func TestAtOnce(t *testing.T) {
	h := newHost(t)
	const loaders = 3
	reports := make(chan Report, loaders)
	for range loaders {
		go func() {
			s, err := Load(Options{Root: h.root, Cgroup: h.cgroup})
			if err != nil {
				t.Error(err)
				reports <- Report{}
				return
			}
			reports <- s.Report()
			_ = s.Close()
		}()
	}
	attached, made := 0, 0
	for range loaders {
		r := <-reports
		attached, made = attached+len(r.Attached), made+len(r.Made)
	}
	if attached != len(hooks) || made != len(must[*ebpf.CollectionSpec](t)(programs()).Maps) {
		t.Errorf("%d hooks attached, %d maps made", attached, made)
	}
	if left := must[[]string](t)(Leftovers(h.root)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	for _, p := range must[[]Program](t)(Programs(h.root)) {
		if !p.Attached || p.Tag == "" {
			t.Errorf("%+v", p)
		}
	}
}
