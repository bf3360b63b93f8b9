package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// tick is the unit of times in /proc/PID/stat. The unit is the same on all architectures of Go.
const tick = 10 * time.Millisecond

// Usage is the usage of a process and its living descendants.
type Usage struct {
	// CPU is the CPU time of all threads, by the process's clock, plus that of ended children, in
	// steps of 10 ms.
	CPU time.Duration
	// RSS is resident memory in bytes. Shared memory counts once for each process.
	RSS int64
}

// Sub returns the growth since an earlier reading.
func (u Usage) Sub(earlier Usage) Usage { return Usage{u.CPU - earlier.CPU, u.RSS - earlier.RSS} }

// Add returns the sum.
func (u Usage) Add(v Usage) Usage { return Usage{u.CPU + v.CPU, u.RSS + v.RSS} }

// cpu returns the time from ticks, for when the process's clock cannot be read.
func cpu(s procfs.ProcStat) time.Duration {
	own, ok := runTime(s.PID)
	if !ok {
		own = time.Duration(s.UTime+s.STime) * tick
	}
	return own + time.Duration(s.CUTime+s.CSTime)*tick
}

// errEnded means that the process has ended.
var errEnded = errors.New("has ended")

// Read returns the sum over a process and its living descendants.
func Read(pid int) (u Usage, err error) {
	all, err := processes()
	if err != nil {
		return u, err
	}
	if _, ok := all[pid]; !ok {
		return u, fmt.Errorf("process %d: %w", pid, errEnded)
	}
	for _, s := range all {
		if !descends(all, s.PID, pid) {
			continue
		}
		u.CPU += cpu(s)
		u.RSS += int64(s.ResidentMemory())
	}
	return u, nil
}

// descends reports whether pid is ancestor or one of its descendants.
func descends(all map[int]procfs.ProcStat, pid, ancestor int) bool {
	for range len(all) {
		if pid == ancestor {
			return true
		}
		s, ok := all[pid]
		if !ok {
			return false
		}
		pid = s.PPID
	}
	return false
}

func processes() (map[int]procfs.ProcStat, error) {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	all := make(map[int]procfs.ProcStat, len(procs))
	for _, p := range procs {
		s, err := p.Stat()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all[s.PID] = s
	}
	return all, nil
}

// Machine describes this machine in one line.
func Machine(cores int) string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		release = []byte("unknown")
	}
	return fmt.Sprintf("%d cores (%s), Linux %s", cores, model, bytes.TrimSpace(release))
}
