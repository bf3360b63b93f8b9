// Package trust says who asks, and what that gives the right to: a principal with its scopes and
// models.
package trust

import (
	"net"
	"net/http"
	"net/netip"
)

// OfHost says whether a connection with this remote address comes from this host, by loopback or a
// Unix socket.
func OfHost(peer net.Addr) bool {
	switch at := peer.(type) {
	case *net.TCPAddr:
		return at.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// Peer returns the remote address of a request of net/http, or nil if it is unknown.
func Peer(req *http.Request) net.Addr {
	if at, ok := req.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); ok {
		return at // net/http does not tell the other end of a Unix socket
	}
	at, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return nil
	}
	return net.TCPAddrFromAddrPort(at)
}
