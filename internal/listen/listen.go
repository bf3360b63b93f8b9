// Package listen parses the addresses that daemons listen on, host:port or unix:///path, and opens
// them.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/rights"
)

// split splits an address into network and place.
func split(address string) (network, at string, err error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok && strings.HasPrefix(path, "/") {
		return "unix", path, nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return "", "", fmt.Errorf("%q is not an address; use host:port or unix:///path", address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return "", "", fmt.Errorf("%q: %q is not a port; use 1 to 65535, or 0 for a free one", address, port)
	}
	return "tcp", address, nil
}

// Check returns an error if address is invalid. Check does not open the address.
func Check(address string) error {
	_, _, err := split(address)
	return err
}

// lookupLimit bounds the lookup of a host name.
const lookupLimit = 5 * time.Second

// Examine returns an error if a socket cannot be made at its path, or if a host is not this host.
// Examine makes nothing. Examine does not check that a port is free, because a running instance may
// use it.
func Examine(address string) error {
	network, at, err := split(address)
	if err != nil {
		return err
	}
	if network != "unix" {
		return own(at)
	}
	if info, err := os.Lstat(at); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is no socket; remove it, or give another path", at)
	}
	if err := rights.Writable(filepath.Dir(at)); err != nil {
		return fmt.Errorf("the socket cannot be made: %w; make that directory, or give another path", err)
	}
	return nil
}

// own returns an error if the host of an address is not this host. To find out, own opens and
// closes a free UDP port.
func own(at string) error {
	host, _, _ := net.SplitHostPort(at)
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	c, err := new(net.ListenConfig).ListenPacket(ctx, "udp", net.JoinHostPort(host, "0"))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%q: %s is no address of this host; give one that it has, or [::] for all", at, host)
	}
	if err != nil {
		return fmt.Errorf("%q: %w; give an address of this host", at, err)
	}
	return c.Close()
}

// Overlap tells whether two addresses cannot be listened on at the same time. Port 0 overlaps with
// nothing.
func Overlap(a, b string) bool {
	networkA, atA, errA := split(a)
	networkB, atB, errB := split(b)
	if errA != nil || errB != nil || networkA != networkB {
		return false
	}
	if networkA == "unix" {
		return filepath.Clean(atA) == filepath.Clean(atB)
	}
	hostA, portA, _ := net.SplitHostPort(atA)
	hostB, portB, _ := net.SplitHostPort(atB)
	numberA, _ := net.LookupPort("tcp", portA)
	numberB, _ := net.LookupPort("tcp", portB)
	return numberA != 0 && numberA == numberB && sameHost(hostA, hostB)
}

func sameHost(a, b string) bool {
	if a == b || a == "" || b == "" {
		return true
	}
	ipA, ipB := parseHost(a), parseHost(b)
	if ipA == nil || ipB == nil {
		return strings.EqualFold(a, b)
	}
	covers := func(all, one net.IP) bool { // [::] includes IPv4
		return all.IsUnspecified() && (all.To4() == nil || one.To4() != nil)
	}
	return ipA.Equal(ipB) || covers(ipA, ipB) || covers(ipB, ipA)
}

func parseHost(host string) net.IP {
	if host == "localhost" {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.ParseIP(host)
}

// Loopback tells whether only this host can reach a listener on address.
func Loopback(address string) bool {
	network, at, err := split(address)
	if err != nil || network == "unix" {
		return err == nil
	}
	host, _, _ := net.SplitHostPort(at)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Rebindable says whether the Host of a request is neither an address nor localhost. Anybody's DNS
// may point another name at this host. The page of another site can then ask a port on loopback as
// if it were its own.
func Rebindable(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil && host != "" && !strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// OpenFor is Open for a setting. OpenFor's error is that of Explain.
func OpenFor(setting, flag, address string) (net.Listener, error) {
	l, err := Open(address)
	if err != nil {
		return nil, Explain(setting, flag, address, err)
	}
	return l, nil
}

// Explain adds to an error of Open or OpenUnix the setting, its flag and a hint. flag may be empty.
func Explain(setting, flag, address string, err error) error {
	name, with := setting+" ("+flag+")", flag
	if flag == "" {
		name, with = setting, setting
	}
	path, unix := strings.CutPrefix(address, "unix://")
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && unix:
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("%s %s: there is a file that is no socket; remove it, or give another path with %s",
				name, address, with)
		}
		return fmt.Errorf("%s %s: the socket is in use%s; stop that program, or give another path with %s", name,
			address, ByHolder(address), with)
	case unix:
		return fmt.Errorf("%s %s: the socket cannot be made: %w; make its directory, or give another path with %s",
			name, address, err, with)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s %s: the port is in use%s; stop that program, or give another address with %s", name,
			address, ByHolder(address), with)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: %w; give a port from 1024 on with %s, or the program CAP_NET_BIND_SERVICE", name, err,
			with)
	}
	return fmt.Errorf("%s: %w; give an address of this host with %s", name, err, with)
}

// Open binds address. Open replaces the socket file of a killed process. Open does not replace a
// socket that accepts connections, or another file.
func Open(address string) (net.Listener, error) {
	network, at, err := split(address)
	if err != nil {
		return nil, err
	}
	if network != "unix" {
		return net.Listen(network, at)
	}
	return overStale(at, func() (net.Listener, error) { return net.Listen(network, at) })
}

// overStale opens the socket at path, if need be after it removed the socket of a dead process.
func overStale[L net.Listener](path string, open func() (L, error)) (L, error) {
	l, err := open()
	if !errors.Is(err, syscall.EADDRINUSE) || !stale(path) {
		return l, err
	}
	if rmErr := os.Remove(path); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		return l, fmt.Errorf("%w; removing what was left behind: %w", err, rmErr)
	}
	return open()
}

// stale tells whether path is a socket without a listener.
func stale(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
