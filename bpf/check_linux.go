package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
)

// Program is a program under a root.
type Program struct {
	Name     string // as `bpftool prog show` has it
	Pin      string
	Hook     string // tracepoint, or kind of cgroup program
	Tells    string // what is missing without it
	Attached bool
	Tag      string        // changes with the program
	Runs     uint64        // only counted while kernel.bpf_stats_enabled is 1
	RunTime  time.Duration // likewise; with what measuring takes, some 50 ns a run
}

// Cost is the mean time of a run; 0 if none has been measured.
func (p Program) Cost() time.Duration {
	if p.Runs == 0 {
		return 0
	}
	return p.RunTime / time.Duration(p.Runs)
}

// Programs lists what belongs under root (empty: DefaultRoot), also what is not there.
func Programs(root string) ([]Program, error) {
	r := pins(rootOf(root))
	if _, err := os.Stat(string(r)); errors.Is(err, fs.ErrNotExist) {
		return nil, &hinted{fmt.Errorf("bpf: nothing is loaded under %s", r),
			"cgn-agent loads the programs when it starts as root"}
	} else if err != nil {
		return nil, opening(string(r), err)
	}
	var all []Program
	for _, h := range hooks {
		p := Program{Name: h.program, Pin: r.path(progsDir, h.program), Hook: h.place(), Tells: h.tells}
		_, err := os.Stat(r.path(linksDir, h.program))
		p.Attached = err == nil
		// The kernel counts runs of what is attached: of tracepoints, that is the dispatcher.
		counts := p.Pin
		if h.dispatcher != "" {
			counts = r.path(progsDir, h.dispatcher)
		}
		if err := p.read(counts); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, opening(p.Pin, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// read fills in what the kernel says of the program and of the one that its runs are counted at.
func (p *Program) read(counts string) error {
	prog, err := ebpf.LoadPinnedProgram(p.Pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return err
	}
	p.Tag = info.Tag
	counted, err := ebpf.LoadPinnedProgram(counts, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer counted.Close()
	stats, err := counted.Stats()
	if err != nil {
		return err
	}
	p.Runs, p.RunTime = stats.RunCount, stats.Runtime
	return nil
}

// Leftovers lists pins under root that this version has no use for, as a version that was removed
// otherwise may leave.
func Leftovers(root string) ([]string, error) {
	spec, err := programs()
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for name := range spec.Maps {
		known[filepath.Join(mapsDir, short(name))] = true
	}
	for _, h := range hooks {
		known[filepath.Join(progsDir, short(h.program))] = true
		known[filepath.Join(progsDir, short(h.dispatcher))] = true
		known[filepath.Join(linksDir, short(h.program))] = true
	}
	var left []string
	for _, dir := range []string{mapsDir, progsDir, linksDir} {
		entries, err := os.ReadDir(filepath.Join(rootOf(root), dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, opening(filepath.Join(rootOf(root), dir), err)
		}
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); !known[name] {
				left = append(left, name)
			}
		}
	}
	return left, nil
}
