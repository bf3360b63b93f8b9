package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// reserve binds addr; where it is busy and the user did not ask for it (fixed
// is false), a free port of the same host. The caller closes the listener when
// the program that is to have the address starts.
func reserve(flag, addr string, fixed bool) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && !fixed {
		host, _, _ := net.SplitHostPort(addr)
		ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, hinted{fmt.Errorf("%s %s: the port is in use%s", flag, addr, by(holder(addr))),
			"stop that program, or give another address with " + flag}
	}
	if err != nil {
		return nil, hinted{fmt.Errorf("%s %s: %w", flag, addr, err), "give an address of this machine with " + flag + " HOST:PORT"}
	}
	return ln, nil
}

// reachable is addr as a client on this host writes it: a listener on all
// addresses is reached through loopback.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

// holder names the process that listens on addr's port, "" if /proc does not tell.
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
