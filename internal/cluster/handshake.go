package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/pki"
)

// following is gRPC's TLS towards etcd, whose files may change: each handshake uses the present
// ones. The name in etcd's certificate is that of the endpoint.
type following struct {
	credentials.TransportCredentials
	id *pki.Identity
}

func newFollowing(id *pki.Identity) following {
	return following{credentials.NewTLS(id.Outside("")), id}
}

// ClientHandshake is that of credentials.NewTLS.
func (f following) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	name, _, err := net.SplitHostPort(authority)
	if err != nil {
		name = authority
	}
	return credentials.NewTLS(f.id.Outside(name)).ClientHandshake(ctx, authority, raw)
}

// Clone returns f, which has no state of its own.
func (f following) Clone() credentials.TransportCredentials { return f }

// HandshakeError means that the TLS handshake with etcd fails. A request itself only times out.
type HandshakeError struct {
	Endpoint string
	Err      error // the error of TLS
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("TLS with etcd at %s fails: %v; are etcd.ca, etcd.cert and etcd.key of its CA?", e.Endpoint,
		e.Err)
}

func (e *HandshakeError) Unwrap() error { return e.Err }

// The time limit for finding a failing handshake, and the time for etcd to reject the client's
// certificate.
const (
	handshakeIn = 3 * time.Second
	refusalIn   = time.Second
)

// Why explains err, the error of a request that timed out. If the TLS handshake with an endpoint
// fails, the result also wraps the *HandshakeError. Otherwise the result names an endpoint that
// cannot be reached, if there is one. Why takes 3 s at most.
func (c *Client) Why(ctx context.Context, err error) error {
	return why(ctx, c.etcd.Endpoints(), c.tls, err)
}

func why(ctx context.Context, endpoints []string, id *pki.Identity, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeIn)
	defer cancel()
	var unreachable error
	for _, endpoint := range endpoints {
		failed, dialed := shake(ctx, endpoint, id)
		if failed != nil {
			return fmt.Errorf("%w (%w)", &HandshakeError{endpoint, failed}, err)
		}
		unreachable = cmp.Or(unreachable, dialed)
	}
	if unreachable != nil {
		return fmt.Errorf("%w; etcd.endpoints: %w", err, unreachable)
	}
	return err
}

// shake does a client's first steps over TCP. failed is the error of TLS, and dialed that of a
// connection that cannot be made. Both are nil if the endpoint works, or does not use TCP.
func shake(ctx context.Context, endpoint string, id *pki.Identity) (failed, dialed error) {
	address, secure := strings.CutPrefix(endpoint, "https://")
	address, plain := strings.CutPrefix(address, "http://")
	address = strings.TrimSuffix(address, "/")
	host, _, err := net.SplitHostPort(address)
	if err != nil || strings.Contains(address, "://") || strings.HasPrefix(address, "unix") {
		return nil, nil
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	if plain || id == nil && !secure {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if id != nil {
		conf = id.Outside(host)
	}
	return shakeOver(ctx, raw, conf), nil
}

// shakeOver does the TLS handshake with etcd, and returns its error.
func shakeOver(ctx context.Context, raw net.Conn, conf *tls.Config) error {
	conf.NextProtos = []string{"h2"}
	conn := tls.Client(raw, conf)
	err := conn.HandshakeContext(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it closes the connection in the handshake, as one without TLS does")
	case err == nil:
		_ = conn.SetReadDeadline(time.Now().Add(refusalIn))
		// with TLS 1.3 the server rejects the certificate only after the handshake
		_, err = conn.Read(make([]byte, 1))
	}
	if ofTLS(err) {
		return err
	}
	return nil
}

// ofTLS distinguishes errors of TLS from those of the network.
func ofTLS(err error) bool {
	_, bad := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	alert, is := errors.AsType[*net.OpError](err)
	return bad || plain || is && alert.Op == "remote error"
}
