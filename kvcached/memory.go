package kvcached

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
)

// memory is the memory available to this process, in bytes; 0: not known.
type memory struct {
	limit     config.Size // upper bound of the process's memory
	source    string      // name of the limit, for people
	available config.Size // available without taking memory from other programs
}

// noLimit is the lowest value of a control group's limit that means no limit.
const noLimit = 1 << 60

// hostMemory reads the host's memory and the limits of this process's control groups, of version 1
// and 2. root is "/" except in tests.
func hostMemory(root string) (m memory) {
	total, available := meminfo(filepath.Join(root, "proc/meminfo"))
	m = memory{total, "the host's memory (MemTotal in /proc/meminfo)", available}
	for _, line := range lines(filepath.Join(root, "proc/self/cgroup")) {
		part := strings.SplitN(line, ":", 3) // number:controllers:path
		if len(part) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		switch {
		case part[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case part[1] != "memory":
			continue
		}
		// A container may see its own group as the root of the mount, so parents of the path are
		// tried as well.
		for path := filepath.Clean("/" + part[2]); ; path = filepath.Dir(path) {
			name := filepath.Join("/", mount, path, file)
			if limit := number(filepath.Join(root, name)); limit > 0 && (m.limit == 0 || limit < m.limit) {
				m.limit, m.source = limit, fmt.Sprintf("the limit of its control group (%s)", name)
			}
			if path == "/" {
				break
			}
		}
	}
	return m
}

// meminfo reads MemTotal and MemAvailable.
func meminfo(name string) (total, available config.Size) {
	for _, line := range lines(name) {
		field, rest, _ := strings.Cut(line, ":")
		text, isKiB := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || !isKiB || n > math.MaxInt64>>10 {
			continue
		}
		switch field {
		case "MemTotal":
			total = config.Size(n << 10)
		case "MemAvailable":
			available = config.Size(n << 10)
		}
	}
	return total, available
}

// number reads a limit of a control group; 0: there is no limit.
func number(name string) config.Size {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= noLimit {
		return 0
	}
	return config.Size(n)
}

func lines(name string) []string {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}
