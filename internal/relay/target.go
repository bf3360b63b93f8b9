package relay

import (
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
)

// Target is the server that a Pool talks to.
type Target struct {
	Network string // "tcp" (default) or "unix"
	Addr    string // host:port, or the path of a unix socket
	// TLS, when set, is spoken over the socket; ServerName defaults to the
	// host of Addr. It is not modified.
	TLS *tls.Config
	// Host is the Host header; default: Addr, or "localhost" for unix sockets.
	Host          string
	BasePath      string // put before every Request.Path; no trailing slash
	Authorization string // value of the Authorization header; "" sends none
}

// destination is a Target and what follows from it. It is immutable.
type destination struct {
	Target
	fixed []byte // Host line
	auth  []byte // Authorization line or nothing
}

func newDestination(t Target) *destination {
	if t.Network == "" {
		t.Network = "tcp"
	}
	if t.Host == "" {
		if t.Host = t.Addr; t.Network == "unix" {
			t.Host = "localhost"
		}
	}
	d := &destination{Target: withServerName(t), fixed: appendField(nil, "Host", t.Host)}
	if t.Authorization != "" {
		d.auth = appendField(nil, "Authorization", t.Authorization)
	}
	return d
}

func withServerName(t Target) Target {
	if t.TLS == nil {
		return t
	}
	t.TLS = t.TLS.Clone()
	if t.TLS.ServerName == "" && !t.TLS.InsecureSkipVerify {
		if host, _, err := net.SplitHostPort(t.Addr); err == nil {
			t.TLS.ServerName = host
		}
	}
	t.TLS.NextProtos = []string{"http/1.1"}
	return t
}

// appendField appends one header line; line ends inside the value are dropped,
// so that a value can never start another field.
func appendField(dst []byte, name, value string) []byte {
	value = strings.Map(func(r rune) rune {
		if r == '\r' || r == '\n' || r == 0 {
			return -1
		}
		return r
	}, value)
	return append(append(append(append(dst, name...), ": "...), value...), "\r\n"...)
}

// Target returns what the pool talks to.
func (p *Pool) Target() Target { return p.to.Load().Target }

func (p *Pool) target(to *destination) {
	p.to.Store(to)
	p.peer.Store(nil)
	if at, err := netip.ParseAddrPort(to.Addr); err == nil && to.Network == "tcp" {
		at = unmapped(at)
		p.peer.Store(&at)
	}
}

// Retarget makes the pool talk to t from now on. Exchanges under way finish as
// they began; no connection made before is used again.
func (p *Pool) Retarget(t Target) {
	to := newDestination(t)
	p.mu.Lock()
	p.target(to)
	old := p.takeIdle()
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// Peer returns the address at the other end of the pool's connections; for a
// target with a name, that of the last connection. ok is false where it is not
// known.
func (p *Pool) Peer() (at netip.AddrPort, ok bool) {
	if known := p.peer.Load(); known != nil {
		return *known, true
	}
	return at, false
}

func unmapped(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
