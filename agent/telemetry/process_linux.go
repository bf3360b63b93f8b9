package telemetry

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
)

// Open returns a function for Options that loads the programs, or takes over those that are there, and falls back on /proc.
func Open(o bpf.Options) func() (Source, error) {
	return func() (Source, error) { return withProcesses(bpf.New(o)), nil }
}

// OpenBPF is Open without the fallback.
func OpenBPF(o bpf.Options) func() (Source, error) {
	return func() (Source, error) {
		s, err := bpf.Load(o)
		if err != nil {
			return Source{}, err
		}
		return withProcesses(s), nil
	}
}

// OpenProc reads /proc and sock_diag only.
func OpenProc() func() (Source, error) {
	return func() (Source, error) { return withProcesses(bpf.NewProc(errors.New(byChoice))), nil }
}

// hostPIDs is the inode of the first PID namespace, the same in every kernel.
const hostPIDs = "pid:[4026531836]"

func withProcesses(kernel bpf.Reader) Source {
	s := Source{Kernel: kernel, Processes: kernel}
	if at, err := os.Readlink("/proc/self/ns/pid"); err == nil && at != hostPIDs && kernel.Source() == bpf.SourceBPF {
		s.Processes = bpf.NewProc(errors.New("the agent is in a PID namespace of its own"))
	}
	return s
}

// threadTime is the CPU time that this thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0) // cannot fail
	return time.Duration(ts.Nano())
}

// alive tells whether there is such a process.
func alive(pid int) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), 0, 0) // sends nothing
	return errno != unix.ESRCH
}

// listening tells whether something in this network namespace listens on the port; what cannot be found out counts as yes.
func listening(port uint16) bool {
	inodes, err := listeners(port)
	return err != nil || len(inodes) > 0
}

// listeners returns the inodes of the sockets that listen on a port.
func listeners(port uint16) (inodes []string, err error) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if at, inode, ok := parseListener(lines.Text()); ok && at == port {
				inodes = append(inodes, inode)
			}
		}
		err = errors.Join(lines.Err(), f.Close())
		if err != nil {
			return nil, err
		}
	}
	return inodes, nil
}

// parseListener reads a line of /proc/net/tcp: sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode.
func parseListener(line string) (port uint16, inode string, ok bool) {
	const listen = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != listen {
		return 0, "", false
	}
	_, text, found := strings.Cut(f[1], ":")
	b, err := hex.DecodeString(text)
	if !found || err != nil || len(b) != 2 {
		return 0, "", false
	}
	return binary.BigEndian.Uint16(b), f[9], true
}

// Listener returns the process that listens on a local port; of several, as a server's workers are, one that none of the others has started.
// One that the agent has no right to see is ErrUnseen.
func Listener(port uint16) (pid int, err error) {
	inodes, err := listeners(port)
	if err != nil {
		return 0, err
	}
	if len(inodes) == 0 {
		return 0, fmt.Errorf("nothing listens on port %d", port)
	}
	var holders []int
	hidden := 0
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		holds, err := holdsSocket(dir, inodes)
		if errors.Is(err, fs.ErrPermission) {
			hidden++
		}
		if holds {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			holders = append(holders, pid)
		}
	}
	if len(holders) == 0 && hidden > 0 {
		return 0, fmt.Errorf("the process that listens on port %d %w: it is another user's; run the agent as that user", port, ErrUnseen)
	}
	if len(holders) == 0 {
		return 0, fmt.Errorf("the process that listens on port %d %w: it may be in another container; run the agent in that", port, ErrUnseen)
	}
	return eldest(holders), nil
}

func holdsSocket(process string, inodes []string) (bool, error) {
	dir := filepath.Join(process, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed
		}
		if inode, ok := strings.CutPrefix(to, "socket:["); ok && slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
			return true, nil
		}
	}
	return false, nil
}

// eldest returns one whose parent is none of them.
func eldest(pids []int) int {
	for _, pid := range pids {
		if !slices.Contains(pids, parent(pid)) {
			return pid
		}
	}
	return pids[0]
}

func parent(pid int) int {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	s := string(text)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(f[1])
	return n
}
