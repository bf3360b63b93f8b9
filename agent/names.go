package agent

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
)

// advertised returns the URL of the front for a listener bound to addr.
func (u *unit) advertised(addr net.Addr) string {
	if u.Advertise != "" {
		return u.Advertise
	}
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	scheme := "http://"
	if u.config.TLS.Cert != "" {
		scheme = "https://"
	}
	host := hostOn(u.Listen)
	if port := portOf(addr); port != "" {
		return scheme + net.JoinHostPort(host, port)
	}
	return scheme + host
}

// hostOf returns the host of the advertised URL; empty for a socket.
func hostOf(advertised string) string {
	if u, err := url.Parse(advertised); err == nil {
		return u.Hostname()
	}
	return ""
}

// nodeID is the configured name. If no name is configured, the id is the host name and the port or
// socket name. With a list of engines, the id is the configured name followed by the engine's id.
func (u *unit) nodeID(addr net.Addr) string {
	begin, end := u.config.Agent.NodeID, u.ID
	if begin != "" && u.element == "" {
		return begin
	}
	begin = cmp.Or(begin, hostname())
	if end == "" {
		end = portOf(addr)
		if addr.Network() == "unix" {
			end = addr.String()[strings.LastIndexByte(addr.String(), '/')+1:]
		}
	}
	return begin + "-" + end
}

// hostOn returns the host of a listening address, or this host's name for a wildcard.
func hostOn(address string) string {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return hostname()
	}
	return host
}

func portOf(addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String())
	return port
}

// hostname returns the host's name, or "localhost" if the kernel has none.
func hostname() string {
	name, _ := os.Hostname()
	return cmp.Or(name, "localhost")
}

// pushOff is the value of agent.push that opens no port.
const pushOff = "off"

// pushListen returns the address that pushes load to routers; empty: load is not pushed. The
// default is an address beside the front of the first unit.
func (c *Config) pushListen(first *unit) string {
	switch at := c.Agent.Push; {
	case at == pushOff || len(c.Etcd.Endpoints) == 0:
		return ""
	case at != "":
		return at
	}
	if path, ok := strings.CutPrefix(first.Listen, "unix://"); ok {
		return "unix://" + path + ".push"
	}
	host, _, _ := net.SplitHostPort(first.Listen)
	return net.JoinHostPort(host, "0")
}

// pushAdvertised returns the announced address of a push listener bound to addr: the listener's
// port, on the host under which routers reach the first front.
func (c *Config) pushAdvertised(addr net.Addr, first *node) string {
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	host, _, _ := net.SplitHostPort(c.pushListen(first.unit))
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || first.unit.Advertise != "" {
		host = hostname()
		if a, err := address.Parse(first.described.Address); err == nil && a.Network == "tcp" {
			host, _, _ = net.SplitHostPort(a.Addr)
		}
	}
	return net.JoinHostPort(host, portOf(addr))
}
