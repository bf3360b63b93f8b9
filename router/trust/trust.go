// Package trust says which clients may steer the router: pin a request to a node, override the
// policy for a request, or change the router's thresholds.
package trust

import (
	"crypto/tls"
	"net"

	"github.com/cognitora/dataplane/router/apierror"
)

// Steers says whether a client may steer the router. A client may if its connection comes from this
// host, by loopback or a Unix socket, or if it has shown a certificate that the port has verified.
// peer is the connection's remote address; conn is nil without TLS.
func Steers(peer net.Addr, conn *tls.ConnectionState) bool {
	switch at := peer.(type) {
	case *net.TCPAddr:
		if at.IP.IsLoopback() {
			return true
		}
	case *net.UnixAddr:
		return true
	}
	return conn != nil && len(conn.VerifiedChains) > 0
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
