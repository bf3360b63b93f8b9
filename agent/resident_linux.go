package agent

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseStart gives back memory that only the start has needed. One part of the memory is heap,
// from reading the kernel's types. The other part is pages of the program's code. The kernel reads
// them from the file again when they run. releaseStart is called once.
func releaseStart() {
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if from, to, ok := codeOf(lines.Text(), exe); ok {
			// MADV_DONTNEED would drop changes that a debugger or a uprobe has made to the code.
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_PAGEOUT)
		}
	}
}

// codeOf reads a line of /proc/PID/maps: from-to rights offset device inode path. ok means that the
// line describes code of the program.
func codeOf(line, exe string) (from, to uintptr, ok bool) {
	f := strings.Fields(line)
	if len(f) != 6 || f[1] != "r-xp" || f[5] != exe {
		return 0, 0, false
	}
	start, end, _ := strings.Cut(f[0], "-")
	a, err1 := strconv.ParseUint(start, 16, 64)
	b, err2 := strconv.ParseUint(end, 16, 64)
	return uintptr(a), uintptr(b), err1 == nil && err2 == nil && a < b
}
