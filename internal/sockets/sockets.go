// Package sockets finds the listening sockets of this network namespace, and the processes that
// have them open, in Linux's /proc. On other systems than Linux the package finds nothing.
package sockets

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Listener is a listening TCP socket.
type Listener struct {
	IP    net.IP
	Inode string // identifies the socket among the files of processes
}

// listens is the kernel's number of the state of a listening socket.
const listens = 0x0A

// Listeners returns the TCP sockets that listen on port, IPv4 first.
func Listeners(port uint16) (found []Listener, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		all, err := table()
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kernel has no IPv6
			return nil, err
		}
		for _, s := range all {
			if s.St == listens && s.LocalPort == uint64(port) {
				found = append(found, Listener{s.LocalAddr, strconv.FormatUint(s.Inode, 10)})
			}
		}
	}
	return found, nil
}

// UnixListener returns the inode of the Unix socket that listens at path; "": there is none, or it
// is unknown.
func UnixListener(path string) string {
	table, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(table)) {
		if inode, ok := parseUnix(strings.TrimSuffix(line, "\n"), path); ok {
			return inode
		}
	}
	return ""
}

// parseUnix parses a line of /proc/net/unix: "Num RefCount Protocol Flags Type St Inode Path". ok
// means that the socket listens at path.
func parseUnix(line, path string) (inode string, ok bool) {
	const accepting = "00010000" // the kernel's flag __SO_ACCEPTCON
	head, after, found := strings.Cut(line, " "+path)
	cols := strings.Fields(head)
	if !found || after != "" || len(cols) != 7 || cols[3] != accepting {
		return "", false
	}
	return cols[6], true
}

// Holders returns the processes that have one of the sockets open. hidden is the number of
// processes that may not be examined, because they belong to other users.
func Holders(inodes ...string) (pids []int, hidden int) {
	processes, _ := procfs.AllProcs()
	for _, p := range processes {
		files, err := p.FileDescriptorTargets()
		if errors.Is(err, fs.ErrPermission) {
			hidden++
		}
		open := func(inode string) bool { return slices.Contains(files, "socket:["+inode+"]") }
		if slices.ContainsFunc(inodes, open) {
			pids = append(pids, p.PID)
		}
	}
	return pids, hidden
}
