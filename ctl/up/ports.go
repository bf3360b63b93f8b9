package up

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/listen"
)

// reserve binds addr. fixed means that the user has asked for addr. reserve binds a free port of
// the same host if addr is in use and not fixed. The caller closes the listener when the program
// for the address starts.
func reserve(flag, addr string, fixed bool) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && !fixed {
		host, _, _ := net.SplitHostPort(addr)
		ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, cli.WithHint(fmt.Errorf("%s %s: the port is in use%s", flag, addr, listen.ByHolder(addr)),
			"stop that program, or give another address with "+flag)
	}
	if err != nil {
		return nil, cli.WithHint(fmt.Errorf("%s %s: %w", flag, addr, err),
			"give an address of this machine with "+flag+" HOST:PORT")
	}
	return ln, nil
}

// reachable returns addr for clients on this host. A listener on all addresses is reached through
// loopback.
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
