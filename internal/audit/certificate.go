package audit

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/pki"
)

// Reasons for which certificates are refused.
const (
	ReasonCertificate = "client_certificate" // in the handshake
	ReasonRole        = "role_denied"        // its role may not do what is asked
)

// Stranger records a client that was refused in its TLS handshake for its certificate, or for want
// of one. Stranger returns false, and records nothing, if err is another error.
func (l *Log) Stranger(port string, client net.Addr, err error) bool {
	const longest = 256 // bytes of what TLS says, which may name the certificate
	if _, bad := errors.AsType[*tls.CertificateVerificationError](err); !bad && !errors.Is(err, pki.ErrRole) &&
		!strings.Contains(err.Error(), "client didn't provide a certificate") { // crypto/tls exports no value
		return false
	}
	if l != nil {
		detail := err.Error()
		l.Refuse(Refusal{Reason: ReasonCertificate, Detail: detail[:min(len(detail), longest)],
			Client: client.String(), Port: port})
	}
	return true
}

// ReasonProcess is the reason for which a process may not use a Unix socket.
const ReasonProcess = "process_denied"

// Process records a process that may not use the Unix socket of a port.
func (l *Log) Process(port string, who fmt.Stringer, why error) {
	if l != nil {
		l.Refuse(Refusal{Reason: ReasonProcess, Detail: why.Error(), Client: who.String(), Port: port})
	}
}

// Credentials returns the credentials of a gRPC server at a port that record refused certificates
// in l.
func Credentials(c credentials.TransportCredentials, l *Log, port string) credentials.TransportCredentials {
	if l == nil {
		return c
	}
	return recording{c, l, port}
}

// recording are credentials that record refused certificates.
type recording struct {
	credentials.TransportCredentials
	log  *Log
	port string
}

// ServerHandshake implements credentials.TransportCredentials.
func (r recording) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := r.TransportCredentials.ServerHandshake(c)
	if err != nil {
		r.log.Stranger(r.port, c.RemoteAddr(), err)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (r recording) Clone() credentials.TransportCredentials {
	r.TransportCredentials = r.TransportCredentials.Clone()
	return r
}
