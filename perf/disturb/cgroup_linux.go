package disturb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quotaPeriod is the period of a group's CPU quota.
const quotaPeriod = 20 * time.Millisecond

// controlGroups are the places of control groups: version 2 for sockets, and the CPU controller,
// which may be in the same place.
type controlGroups struct {
	unified string // mount point of version 2
	cpu     string // mount point of the CPU controller
	one     bool   // the CPU controller is of version 1
}

func findControlGroups() (g controlGroups, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return g, err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 4:
		case f[2] == "cgroup2":
			g.unified = f[1]
		case f[2] == "cgroup" && slices.Contains(strings.Split(f[3], ","), "cpu"):
			g.cpu, g.one = f[1], true
		}
	}
	if g.unified == "" {
		return g, fmt.Errorf("disturb: no file system of control groups version 2 is mounted: %w",
			errors.ErrUnsupported)
	}
	if g.cpu == "" {
		g.cpu = g.unified
		if err := os.WriteFile(filepath.Join(g.cpu, "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
			return g, fmt.Errorf("disturb: no CPU controller for control groups: %w", err)
		}
	}
	return g, nil
}

// group is a control group with a share of CPU.
type group struct{ folders []string }

// make makes a group directly below the root, where no parent must enable controllers.
func (g controlGroups) make(name string, cpu float64) (*group, error) {
	made := &group{}
	for _, at := range []string{g.unified, g.cpu} {
		folder := filepath.Join(at, name)
		if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(err, made.remove())
		}
		made.folders = append(made.folders, folder)
	}
	period, quota := int(quotaPeriod.Microseconds()), int(cpu*float64(quotaPeriod.Microseconds()))
	files := map[string]string{"cpu.max": fmt.Sprintf("%d %d", quota, period)}
	if g.one {
		files = map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": strconv.Itoa(quota)}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(made.folders[1], name), []byte(text), 0o644); err != nil {
			return nil, errors.Join(err, made.remove())
		}
	}
	return made, nil
}

// within returns a command that runs argv in the group from its first instruction on.
func (g *group) within(argv ...string) []string {
	enter := ""
	for _, f := range g.folders {
		enter += "echo $$ >" + filepath.Join(f, "cgroup.procs") + " && "
	}
	return append([]string{"/bin/sh", "-c", enter + `exec "$@"`, "sh"}, argv...)
}

// remove removes the group. The group's processes must have ended.
func (g *group) remove() error {
	var errs []error
	for _, f := range g.folders {
		var err error
		for range 100 { // the kernel needs time after the last process has ended
			if err = os.Remove(f); err == nil || errors.Is(err, fs.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
