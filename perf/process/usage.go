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

// tick is the unit of the times in /proc/PID/stat, the same on all architectures that Go knows.
const tick = 10 * time.Millisecond

// Usage is what a process and its living descendants use.
type Usage struct {
	// CPU is the time of all threads, by the process's clock, and of ended children, in steps of
	// 10 ms.
	CPU time.Duration
	// RSS is resident bytes. Memory that processes share counts once for each.
	RSS int64
}

// Sub is the growth since an earlier reading.
func (u Usage) Sub(earlier Usage) Usage { return Usage{u.CPU - earlier.CPU, u.RSS - earlier.RSS} }

// Add is the sum of both.
func (u Usage) Add(v Usage) Usage { return Usage{u.CPU + v.CPU, u.RSS + v.RSS} }

// stat is read from /proc/PID/stat.
type stat struct {
	pid, parent int
	own, ended  int64 // ticks of the process itself, and of children that have ended
	rss         int64 // pages
}

// cpu is the time in ticks where the process's clock cannot be read.
func (s stat) cpu() time.Duration {
	own, ok := runTime(s.pid)
	if !ok {
		own = time.Duration(s.own) * tick
	}
	return own + time.Duration(s.ended)*tick
}

// parseStat reads the line of /proc/PID/stat. The name in parentheses may hold anything.
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

// errEnded: the process is gone.
var errEnded = errors.New("has ended")

// Read adds up a process and its living descendants.
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

// descends reports whether pid is ancestor or below it.
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
			continue // ended meanwhile
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

// Machine describes what everything ran on, in one line.
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
