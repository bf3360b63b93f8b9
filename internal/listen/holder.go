package listen

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/sockets"
)

// ByHolder returns " by NAME (process N)" for the process whose socket prevents listening on addr,
// which is host:port or unix:///path. ByHolder returns "" if /proc does not show the process.
func ByHolder(addr string) string {
	if who := ownerOf(holder(addr)); who != "" {
		return " by " + who
	}
	return ""
}

// holder returns the inode of this socket; "": unknown.
func holder(addr string) (inode string) {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return sockets.UnixListener(path)
	}
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(text, 10, 16)
	ip := parseHost(host)
	if host == "" || ip != nil && ip.IsUnspecified() {
		ip = net.IPv6unspecified // net.Listen listens on both families for a wildcard
	}
	if err != nil || ip == nil {
		return ""
	}
	found, _ := sockets.Listeners(uint16(port))
	for _, l := range found {
		if l.IP.Equal(ip) {
			return l.Inode
		}
		if inode == "" && sameHost(l.IP.String(), ip.String()) {
			inode = l.Inode // one of the two addresses is a wildcard
		}
	}
	return inode
}

// ownerOf returns the name of a process that has the socket open.
func ownerOf(inode string) string {
	if inode == "" {
		return ""
	}
	pids, _ := sockets.Holders(inode)
	if len(pids) == 0 {
		return ""
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pids[0]))
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(name)), pids[0])
}
