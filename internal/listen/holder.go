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

// ByHolder is " by NAME (process N)", the process that listens on addr's port,
// or "" where /proc does not tell.
func ByHolder(addr string) string {
	if who := holder(addr); who != "" {
		return " by " + who
	}
	return ""
}

func holder(addr string) string {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return ""
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if inode := listener(table, uint16(port)); inode != "" {
			return ownerOf("socket:[" + inode + "]")
		}
	}
	return ""
}

const stateListen = "0A"

// listener finds the inode of the socket that listens on port in a table of
// /proc/net: "sl local_address rem_address st ... inode" with the port in hex.
func listener(table string, port uint16) string {
	f, err := os.Open(table)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		cols := strings.Fields(lines.Text())
		if len(cols) < 10 || cols[3] != stateListen {
			continue
		}
		_, hexPort, _ := strings.Cut(cols[1], ":")
		b, err := hex.DecodeString(hexPort)
		if err == nil && len(b) == 2 && binary.BigEndian.Uint16(b) == port {
			return cols[9]
		}
	}
	return ""
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
