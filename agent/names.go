package agent

import (
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
)

// advertised is the URL of the front for a listener bound to addr.
func (c *Config) advertised(addr net.Addr) string {
	if c.Agent.Advertise != "" {
		return c.Agent.Advertise
	}
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	scheme := "http://"
	if c.TLS.Cert != "" {
		scheme = "https://"
	}
	host, _, _ := net.SplitHostPort(c.Agent.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = hostname()
	}
	if port := portOf(addr); port != "" {
		return scheme + net.JoinHostPort(host, port)
	}
	return scheme + host
}

// hostOf is the host of the advertised URL; empty for a socket.
func hostOf(advertised string) string {
	if u, err := url.Parse(advertised); err == nil {
		return u.Hostname()
	}
	return ""
}

// nodeID is the configured name, else host name and port or socket name.
func (c *Config) nodeID(addr net.Addr) string {
	if c.Agent.NodeID != "" {
		return c.Agent.NodeID
	}
	suffix := portOf(addr)
	if addr.Network() == "unix" {
		suffix = addr.String()[strings.LastIndexByte(addr.String(), '/')+1:]
	}
	return hostname() + "-" + suffix
}

func portOf(addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String())
	return port
}

// hostname is the host's name, "localhost" where the kernel has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}

// pushOff is the value of agent.push for no port.
const pushOff = "off"

// pushListen is where routers are told of load; empty: nowhere.
func (c *Config) pushListen() string {
	switch at := c.Agent.Push; {
	case at == pushOff || len(c.Etcd.Endpoints) == 0:
		return ""
	case at != "":
		return at
	}
	if path, ok := strings.CutPrefix(c.Agent.Listen, "unix://"); ok {
		return "unix://" + path + ".push"
	}
	host, _, _ := net.SplitHostPort(c.Agent.Listen)
	return net.JoinHostPort(host, "0")
}

// pushAdvertised is what routers are told of a push listener bound to addr: its port on the host under which they reach the front.
func (c *Config) pushAdvertised(addr net.Addr, front string) string {
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	host, _, _ := net.SplitHostPort(c.pushListen())
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || c.Agent.Advertise != "" {
		host = hostname()
		if a, err := address.Parse(front); err == nil && a.Network == "tcp" {
			host, _, _ = net.SplitHostPort(a.Addr)
		}
	}
	return net.JoinHostPort(host, portOf(addr))
}
