package telemetry

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/sockets"
)

// Open returns a function for Options that loads the programs or takes over loaded ones, and falls
// back on /proc. After its first call the function does not replace programs of another version.
func Open(o bpf.Options) func() (Source, error) {
	return func() (Source, error) {
		s := withProcesses(bpf.New(o))
		o.Keep = true
		return s, nil
	}
}

// OpenBPF is Open without the fallback at the first call. Later calls fall back, so that removing
// the programs does not end a running agent.
func OpenBPF(o bpf.Options) func() (Source, error) {
	return func() (Source, error) {
		if o.Keep {
			return withProcesses(bpf.New(o)), nil
		}
		s, err := bpf.Load(o)
		if err != nil {
			return Source{}, bpf.WithHint(err)
		}
		o.Keep = true
		return withProcesses(s), nil
	}
}

// OpenProc returns a function for Options that reads only /proc and sock_diag.
func OpenProc() func() (Source, error) {
	return func() (Source, error) { return withProcesses(bpf.NewProc(errors.New(byChoice))), nil }
}

// hostPIDs is the inode of the first PID namespace. The inode is the same in every kernel.
const hostPIDs = "pid:[4026531836]"

func withProcesses(kernel bpf.Reader) Source {
	s := Source{Kernel: kernel, Processes: kernel}
	if at, err := os.Readlink("/proc/self/ns/pid"); err == nil && at != hostPIDs && kernel.Source() == bpf.SourceBPF {
		s.Processes = bpf.NewProc(errors.New("the agent is in a PID namespace of its own"))
	}
	return s
}

// threadTime returns the CPU time that this thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	// cannot fail
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// alive tells whether the process exists.
func alive(pid int) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), 0, 0) // signal 0 sends nothing
	return errno != unix.ESRCH
}

// listening tells whether a socket in this network namespace listens on the port. listening returns
// true if it cannot find out.
func listening(port uint16) bool {
	found, err := sockets.Listeners(port)
	return err != nil || len(found) > 0
}

// Listener returns the process that listens on a local port. Several processes may listen, as
// workers of a server do. Listener then returns one without a parent among them. Listener returns
// ErrUnseen if the agent has no right to see the process.
func Listener(port uint16) (pid int, err error) {
	found, err := sockets.Listeners(port)
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, fmt.Errorf("nothing listens on port %d", port)
	}
	inodes := make([]string, len(found))
	for i, l := range found {
		inodes[i] = l.Inode
	}
	switch holders, hidden := sockets.Holders(inodes...); {
	case len(holders) > 0:
		return eldest(holders), nil
	case hidden > 0:
		return 0, fmt.Errorf("the process that listens on port %d %w: it is another user's; run the agent as that user",
			port, ErrUnseen)
	}
	return 0, fmt.Errorf("the process that listens on port %d %w: it may be in another container; run the agent "+
		"in that", port, ErrUnseen)
}

// eldest returns a process whose parent is none of the others.
func eldest(pids []int) int {
	for _, pid := range pids {
		if !slices.Contains(pids, parent(pid)) {
			return pid
		}
	}
	return pids[0]
}

// parent returns 0 if the process has ended.
func parent(pid int) int {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	s, _ := p.Stat()
	return s.PPID
}
