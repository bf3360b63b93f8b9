package listen

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ByHolder is " by NAME (process N)", a process whose socket keeps others from listening on addr, host:port or unix:///path,
// or "" where /proc does not tell.
func ByHolder(addr string) string {
	if who := holder(addr); who != "" {
		return " by " + who
	}
	return ""
}

func holder(addr string) string {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return unixHolder(path)
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
	var others []bound // that take the port with a wildcard, theirs or addr's
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, l := range listeners(table, uint16(port)) {
			if l.ip.Equal(ip) {
				return ownerOf("socket:[" + l.inode + "]")
			}
			if sameHost(l.ip.String(), ip.String()) {
				others = append(others, l)
			}
		}
	}
	if len(others) == 0 {
		return ""
	}
	return ownerOf("socket:[" + others[0].inode + "]")
}

// accepting is the flag of a Unix socket that listens, __SO_ACCEPTCON, in /proc/net/unix.
const accepting = "00010000"

// unixHolder finds the process that listens at path: "Num RefCount Protocol Flags Type St Inode Path".
func unixHolder(path string) string {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		head, at, ok := strings.Cut(lines.Text(), " "+path)
		if cols := strings.Fields(head); ok && at == "" && len(cols) == 7 && cols[3] == accepting {
			return ownerOf("socket:[" + cols[6] + "]")
		}
	}
	return ""
}

const stateListen = "0A"

// bound is a socket that listens.
type bound struct {
	ip    net.IP
	inode string
}

// listeners finds the sockets that listen on port in a table of /proc/net:
// "sl local_address rem_address st ... inode", with address and port in hex.
func listeners(table string, port uint16) (found []bound) {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		cols := strings.Fields(lines.Text())
		if len(cols) < 10 || cols[3] != stateListen {
			continue
		}
		hexIP, hexPort, _ := strings.Cut(cols[1], ":")
		b, err := hex.DecodeString(hexPort)
		if err != nil || len(b) != 2 || binary.BigEndian.Uint16(b) != port {
			continue
		}
		if ip := kernelIP(hexIP); ip != nil {
			found = append(found, bound{ip, cols[9]})
		}
	}
	return found
}

// kernelIP reads an address as /proc/net has it: words of 32 bits in the host's byte order. nil: it is none.
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

// ownerOf finds the process that has the socket open.
func ownerOf(socket string) string {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != socket {
			continue
		}
		pid := strings.Split(link, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}
