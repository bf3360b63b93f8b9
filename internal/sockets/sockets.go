// Package sockets finds the listening sockets of this network namespace, and the processes that
// have them open, in Linux's /proc. On other systems than Linux the package finds nothing.
package sockets

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listener is a listening TCP socket.
type Listener struct {
	IP    net.IP
	Port  uint16
	Inode string // identifies the socket among the files of processes
}

// Listeners returns the TCP sockets that listen on port, IPv4 first.
func Listeners(port uint16) (found []Listener, err error) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		err := lines(table, func(line string) {
			if l, ok := parse(line); ok && l.Port == port {
				found = append(found, l)
			}
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kernel has no IPv6
			return nil, err
		}
	}
	return found, nil
}

// parse parses a line of /proc/net/tcp: "sl local_address rem_address st tx_queue:rx_queue
// tr:tm->when retrnsmt uid timeout inode", with address and port in hex.
func parse(line string) (l Listener, ok bool) {
	const listens = "0A"
	cols := strings.Fields(line)
	if len(cols) < 10 || cols[3] != listens {
		return l, false
	}
	ip, port, _ := strings.Cut(cols[1], ":")
	b, err := hex.DecodeString(port)
	if err != nil || len(b) != 2 {
		return l, false
	}
	l = Listener{kernelIP(ip), binary.BigEndian.Uint16(b), cols[9]}
	return l, l.IP != nil
}

// kernelIP parses an address of /proc/net: words of 32 bits in the host's byte order. nil: invalid.
func kernelIP(text string) net.IP {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != net.IPv4len && len(b) != net.IPv6len {
		return nil
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	return b
}

// UnixListener returns the inode of the Unix socket that listens at path; "": there is none, or it
// is unknown.
func UnixListener(path string) (inode string) {
	_ = lines("/proc/net/unix", func(line string) {
		if of, ok := parseUnix(line, path); ok && inode == "" {
			inode = of
		}
	})
	return inode
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

// lines calls fn with each line of a file.
func lines(file string, fn func(line string)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		fn(s.Text())
	}
	return s.Err()
}

// Holders returns the processes that have one of the sockets open. hidden is the number of
// processes that may not be examined, because they belong to other users.
func Holders(inodes ...string) (pids []int, hidden int) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		holds, err := holds(dir, inodes)
		if errors.Is(err, fs.ErrPermission) {
			hidden++
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); holds && err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, hidden
}

func holds(process string, inodes []string) (bool, error) {
	dir := filepath.Join(process, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // the process has closed it
		}
		if inode, ok := strings.CutPrefix(to, "socket:["); ok && slices.Contains(inodes, strings.TrimSuffix(inode,
			"]")) {
			return true, nil
		}
	}
	return false, nil
}
