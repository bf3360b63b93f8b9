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
