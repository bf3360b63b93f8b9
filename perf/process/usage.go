package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc/PID/stat. The unit is the same on all architectures of Go.
const tick = 10 * time.Millisecond

// Usage is the usage of a process and its living descendants.
type Usage struct {
	// CPU is the time of all threads, by the process's clock, and that of ended children, in steps
	// of 10 ms.
	CPU time.Duration
	// RSS is resident memory in bytes. Shared memory counts once for each process.
	RSS int64
}

// Sub returns the growth since an earlier reading.
func (u Usage) Sub(earlier Usage) Usage { return Usage{u.CPU - earlier.CPU, u.RSS - earlier.RSS} }

// Add returns the sum.
func (u Usage) Add(v Usage) Usage { return Usage{u.CPU + v.CPU, u.RSS + v.RSS} }

// stat holds values of /proc/PID/stat.
type stat struct {
	pid, parent int
	own, ended  int64 // ticks of the process itself, and of its ended children
	rss         int64 // in pages
}

// cpu returns the time from ticks, for when the process's clock cannot be read.
func (s stat) cpu() time.Duration {
	own, ok := runTime(s.pid)
	if !ok {
		own = time.Duration(s.own) * tick
	}
	return own + time.Duration(s.ended)*tick
}

// parseStat parses the line of /proc/PID/stat. The name in parentheses may contain any character.
func parseStat(line []byte) (s stat, err error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return s, fmt.Errorf("process: no name in %q", line)
	}
	if s.pid, err = strconv.Atoi(string(bytes.TrimSpace(line[:open]))); err != nil {
		return s, fmt.Errorf("process: pid: %w", err)
	}
	f := strings.Fields(string(line[end+1:])) // f[0] is field 3 of proc(5)
	if len(f) < 22 {
		return s, fmt.Errorf("process: only %d fields", len(f))
	}
	if s.parent, err = strconv.Atoi(f[1]); err != nil {
		return s, fmt.Errorf("process: parent: %w", err)
	}
	for i, into := range []*int64{&s.own, &s.own, &s.ended, &s.ended} { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f[11+i], 10, 64)
		if err != nil {
			return s, fmt.Errorf("process: time: %w", err)
		}
		*into += n
	}
	s.rss, err = strconv.ParseInt(f[21], 10, 64)
	return s, err
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
		if !descends(all, s.pid, pid) {
			continue
		}
		u.CPU += s.cpu()
		u.RSS += s.rss * int64(os.Getpagesize())
	}
	return u, nil
}

// descends reports whether pid is ancestor or one of its descendants.
func descends(all map[int]stat, pid, ancestor int) bool {
	for range len(all) {
		if pid == ancestor {
			return true
		}
		s, ok := all[pid]
		if !ok {
			return false
		}
		pid = s.parent
	}
	return false
}

func processes() (map[int]stat, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(paths) == 0 {
		return nil, errors.New("process: there is no /proc to read")
	}
	all := make(map[int]stat, len(paths))
	for _, p := range paths {
		line, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		s, err := parseStat(line)
		if err != nil {
			return nil, err
		}
		all[s.pid] = s
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
