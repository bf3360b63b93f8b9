package events

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Endpoint is a ZeroMQ address: tcp://HOST:PORT or ipc://PATH to connect to. An endpoint with a
// leading @ is an address to listen on for an engine that connects.
type Endpoint struct {
	Network, Addr string // as in net.Dial
	Listen        bool
}

// ParseEndpoint reads an endpoint. One to listen on must be local to this host, because peers are
// not authenticated.
func ParseEndpoint(text string) (e Endpoint, err error) {
	rest, listen := strings.CutPrefix(text, "@")
	e.Listen = listen
	scheme, addr, _ := strings.Cut(rest, "://")
	switch scheme {
	case "ipc":
		e.Network, e.Addr = "unix", addr
		if !strings.HasPrefix(addr, "/") {
			return e, fmt.Errorf("endpoint %q: give an absolute path, ipc:///run/engine.sock", text)
		}
		return e, nil
	case "tcp":
	default:
		return e, fmt.Errorf("endpoint %q is not tcp://HOST:PORT or ipc:///PATH", text)
	}
	e.Network, e.Addr = "tcp", addr
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return e, fmt.Errorf("endpoint %q is not tcp://HOST:PORT", text)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || port == "0" && !listen {
		return e, fmt.Errorf("endpoint %q: %q is not a port", text, port)
	}
	if host == "" || host == "*" {
		return e, fmt.Errorf("endpoint %q: %q is where the engine listens; give the host under which it is reached, "+
			"such as tcp://127.0.0.1:%s, or @tcp://127.0.0.1:%s if the engine connects", text, host, port, port)
	}
	if ip := net.ParseIP(host); listen && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return e, fmt.Errorf("endpoint %q: anybody who reaches it could say what the engine has; listen on a "+
			"loopback address or @ipc:///PATH", text)
	}
	return e, nil
}

// OfRank returns the endpoint of a data-parallel rank of the engine. Engines add a rank's number to
// the port.
func (e Endpoint) OfRank(rank int) (Endpoint, error) {
	if rank == 0 || e == (Endpoint{}) {
		return e, nil
	}
	host, port, err := net.SplitHostPort(e.Addr)
	if e.Network != "tcp" || err != nil {
		return e, fmt.Errorf("endpoint %q: data-parallel ranks differ by their ports; give tcp://HOST:PORT", e)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n == 0 || n+rank > 65535 {
		return e, fmt.Errorf("endpoint %q: rank %d has no port; a rank adds its number to the port", e, rank)
	}
	e.Addr = net.JoinHostPort(host, strconv.Itoa(n+rank))
	return e, nil
}

// CheckRanks returns an error unless each data-parallel rank has a port of its own at both
// addresses. A zero replay address is none.
func CheckRanks(endpoint, replay Endpoint, ranks int) error {
	for _, e := range []Endpoint{endpoint, replay} {
		if _, err := e.OfRank(max(ranks-1, 0)); err != nil {
			return err
		}
	}
	if ranks < 2 || replay == (Endpoint{}) {
		return nil
	}
	first, _ := strconv.Atoi(portOf(endpoint))
	second, _ := strconv.Atoi(portOf(replay))
	if gap := max(first-second, second-first); gap < ranks {
		return fmt.Errorf("endpoints %q and %q are %d ports apart, and each of %d data-parallel ranks adds its number to "+
			"both; leave %d ports or more between them", endpoint, replay, gap, ranks, ranks)
	}
	return nil
}

func portOf(e Endpoint) string {
	_, port, _ := net.SplitHostPort(e.Addr)
	return port
}

// String returns the text form of the endpoint.
func (e Endpoint) String() string {
	text := "tcp://" + e.Addr
	if e.Network == "unix" {
		text = "ipc://" + e.Addr
	}
	if e.Listen {
		return "@" + text
	}
	return text
}
