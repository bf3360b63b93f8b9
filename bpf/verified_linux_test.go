package bpf

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// release returns the kernel's release.
func release(t testing.TB) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(u.Release[:])
}

// TestVerified: this kernel's verifier accepts every program, and each is attached. The test logs a
// line for each program.
func TestVerified(t *testing.T) {
	h := newHost(t)
	h.load()
	names := []string{}
	for _, hk := range hooks {
		names = append(names, hk.program)
		if hk.dispatcher != "" {
			names = append(names, hk.dispatcher)
		}
	}
	rows := []string{fmt.Sprintf("%-16s %14s  %s", "PROGRAM", "VERIFIED INSNS", "ON LINUX "+release(t))}
	row := func(name string, p *ebpf.Program, did string) {
		info := must[*ebpf.ProgramInfo](t)(p.Info())
		verified, ok := info.VerifiedInstructions()
		if !ok || verified == 0 {
			t.Errorf("the kernel does not say what it has verified of %s", name)
		}
		rows = append(rows, fmt.Sprintf("%-16s %14d  %s", name, verified, did))
	}
	for _, name := range names {
		p := must[*ebpf.Program](t)(ebpf.LoadPinnedProgram(filepath.Join(h.root, progsDir, short(name)), nil))
		row(name, p, "loaded")
		_ = p.Close()
	}
	for _, p := range must[[]Program](t)(Programs(h.root)) {
		if !p.Attached {
			t.Errorf("%s is not attached", p.Name)
		}
	}
	spec := must[*ebpf.CollectionSpec](t)(programs())
	if len(names)+1 != len(spec.Programs) {
		t.Errorf("%d programs are built, %d are told of", len(spec.Programs), len(names)+1)
	}
	row(prime, h.primed(spec), "loaded, run once")
	t.Log("\n" + strings.Join(rows, "\n"))
}

// primed loads cgn_prime, which has no pin, with maps of its own.
func (h *host) primed(spec *ebpf.CollectionSpec) *ebpf.Program {
	h.t.Helper()
	one := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{},
		Programs: map[string]*ebpf.ProgramSpec{prime: spec.Programs[prime]}}
	for _, name := range []string{"cgn_tasks", "cgn_drops"} {
		one.Maps[name] = spec.Maps[name]
	}
	c := must[*ebpf.Collection](h.t)(ebpf.NewCollection(one))
	h.t.Cleanup(c.Close)
	return c.Programs[prime]
}
