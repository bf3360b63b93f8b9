package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// Program is a BPF program under a root.
type Program struct {
	Name     string // as in `bpftool prog show`
	Pin      string
	Hook     string // tracepoint, or type of cgroup program
	Tells    string // figure that is missing without the program
	Attached bool
	Tag      string        // hash of the program's instructions
	Runs     uint64        // counted only while kernel.bpf_stats_enabled is 1
	RunTime  time.Duration // counted likewise; includes the cost of measuring, about 50 ns a run
}

// Cost returns the mean time of a run; 0 if no run has been measured.
func (p Program) Cost() time.Duration {
	if p.Runs == 0 {
		return 0
	}
	return p.RunTime / time.Duration(p.Runs)
}

// Programs lists the programs that belong under root (empty: DefaultRoot), including missing ones.
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
		// The kernel counts the runs of the attached program. For a tracepoint this is the
		// dispatcher.
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

// read fills in the kernel's data of the program, and the runs that are counted at counts.
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
