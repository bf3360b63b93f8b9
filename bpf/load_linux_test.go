package bpf

import (
	"bufio"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/netpath"
)

// child returns the test binary as a child with a job.
func (h *host) child(job string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childEnv+"="+job, rootEnv+"="+h.root, groupEnv+"="+h.cgroup), env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// connections opens n connections one after the other, and exchanges bytes over each.
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

// times returns often, or short with -short, which is for emulated machines.
func times(often, short int) int {
	if testing.Short() {
		return short
	}
	return often
}

// TestKilled: if the process that loaded the programs is killed, the counts stay and counting goes
// on.
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
	_ = owner.Wait() // reports that it was killed
	connections(t, p.A, to, 5)
	s := h.load()
	if r := s.Report(); len(r.Made)+len(r.Attached) != 0 || len(r.Reused) != len(s.maps) {
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

// TestClean: Clean leaves neither pins nor programs. Clean does not fail if there is nothing to
// remove.
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

// TestRights: Load works for a user with the three capabilities that it names. Without these
// capabilities Load names the missing ones.
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

// TestNoFileSystem: Load refuses a folder outside a BPF file system, with a hint.
func TestNoFileSystem(t *testing.T) {
	h := newHost(t)
	_, err := Load(Options{Root: filepath.Join(t.TempDir(), "x"), Cgroup: h.cgroup})
	var hint interface{ Hint() string }
	if !errors.As(err, &hint) || !strings.Contains(hint.Hint(), "mount") {
		t.Error(err)
	}
}

// TestAtOnce: loaders that start at the same time take turns, and later ones reuse the objects of
// the first.
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
	for _, p := range must[[]Program](t)(Programs(h.root)) {
		if !p.Attached || p.Tag == "" {
			t.Errorf("%+v", p)
		}
	}
}
