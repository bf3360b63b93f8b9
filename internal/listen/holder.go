package listen

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/sockets"
)

// ByHolder is " by NAME (process N)", a process whose socket keeps others from listening on addr,
// host:port or unix:///path, or "" where /proc does not tell.
func ByHolder(addr string) string {
	if who := ownerOf(holder(addr)); who != "" {
		return " by " + who
	}
	return ""
}

// holder is the inode of that socket; "": it is not known.
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
		ip = net.IPv6unspecified // net.Listen takes both families for each wildcard
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
			inode = l.Inode // it takes the port with a wildcard, its own or addr's
		}
	}
	return inode
}

// ownerOf names a process that has the socket open.
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
