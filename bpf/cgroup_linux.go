package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// findCgroup finds the cgroup (version 2) that holds the group's processes and no others. systemd
// makes a cgroup for each service. A cgroup also counts children that start and end between two
// looks.
func (g *procGroup) findCgroup() {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(g.root), "cgroup"))
	if err != nil {
		return
	}
	top, err := cgroupFolder("")
	if err != nil {
		return
	}
	tree := append([]int{g.root}, descendants(g.root)...)
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok || path == "/" {
			continue
		}
		folder := filepath.Join(top, path)
		members, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
		if err != nil {
			continue
		}
		if slices.ContainsFunc(strings.Fields(string(members)), func(pid string) bool {
			n, err := strconv.Atoi(pid)
			return err != nil || !slices.Contains(tree, n)
		}) {
			continue
		}
		used, ok := cgroupCPU(folder)
		if !ok {
			continue
		}
		g.cgroup, g.used = folder, used-g.now()
	}
}

// now returns the CPU time that the group's threads have used.
func (g *procGroup) now() time.Duration {
	sum := g.ended
	for _, t := range g.seen {
		sum.add(t)
	}
	return sum.cpu
}

// cgroupCPU reads usage_usec of cpu.stat.
func cgroupCPU(folder string) (time.Duration, bool) {
	if folder == "" {
		return 0, false
	}
	text, err := os.ReadFile(filepath.Join(folder, "cpu.stat"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
			us, err := strconv.ParseInt(value, 10, 64)
			return time.Duration(us) * time.Microsecond, err == nil && us >= 0
		}
	}
	return 0, false
}
