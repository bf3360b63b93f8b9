// Package listen reads the addresses that daemons listen on, host:port or
// unix:///path, and opens them.
package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

// split takes an address apart.
func split(address string) (network, at string, err error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok && strings.HasPrefix(path, "/") {
		return "unix", path, nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil || strings.HasPrefix(address, "unix:") {
		return "", "", fmt.Errorf("%q is not an address; use host:port or unix:///path", address)
	}
	return "tcp", address, nil
}

// Check says whether address is one, without opening it.
func Check(address string) error {
	_, _, err := split(address)
	return err
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

// Open binds address. The socket file that a killed process left behind is
// replaced; one that somebody answers on, or a file that is no socket, is not.
func Open(address string) (net.Listener, error) {
	network, at, err := split(address)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen(network, at)
	if network != "unix" || !errors.Is(err, syscall.EADDRINUSE) || !stale(at) {
		return l, err
	}
	if rmErr := os.Remove(at); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; removing what was left behind: %w", err, rmErr)
	}
	return net.Listen(network, at)
}

// stale tells whether path is a socket on which nobody listens.
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
