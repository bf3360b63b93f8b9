// Package trust says which clients may steer the router: pin a request to a node, override the
// policy for a request, or change the router's thresholds.
package trust

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"

	"github.com/cognitora/dataplane/router/apierror"
)

// Steers says whether a client may steer the router. A client may if its connection comes from this
// host, by loopback or a Unix socket, or if it has shown a certificate that the port has verified.
// peer is the connection's remote address; conn is nil without TLS.
func Steers(peer net.Addr, conn *tls.ConnectionState) bool {
	return OfHost(peer) || conn != nil && len(conn.VerifiedChains) > 0
}

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

// Denied returns the error of a client that may not steer. what is the field or header that steers.
func Denied(what string) *apierror.Error {
	return &apierror.Error{
		Status: 403, Code: "steering_denied", Param: what,
		Message: "`" + what + "` steers the router, which a client of another host may do only with a certificate " +
			"that the router verifies; leave it out, show a certificate (tls.client_ca of the router), or ask from " +
			"the router's own host",
	}
}
