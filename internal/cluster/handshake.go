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
)

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
// fails, the result also wraps the *HandshakeError. Why takes 3 s at most.
func (c *Client) Why(ctx context.Context, err error) error {
	return why(ctx, c.etcd.Endpoints(), c.tls, err)
}

func why(ctx context.Context, endpoints []string, conf *tls.Config, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeIn)
	defer cancel()
	for _, endpoint := range endpoints {
		if failed := shake(ctx, endpoint, conf); failed != nil {
			return fmt.Errorf("%w (%w)", &HandshakeError{endpoint, failed}, err)
		}
	}
	return err
}

// shake does a client's first steps, and returns the error of TLS; nil: TLS works, or the endpoint
// is unreachable, or it does not use TLS over TCP.
func shake(ctx context.Context, endpoint string, conf *tls.Config) error {
	address, secure := strings.CutPrefix(endpoint, "https://")
	if strings.Contains(address, "://") || strings.HasPrefix(address, "unix") || conf == nil && !secure {
		return nil
	}
	address = strings.TrimSuffix(address, "/")
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	defer raw.Close()
	conf = cmp.Or(conf, &tls.Config{MinVersion: tls.VersionTLS12}).Clone()
	conf.ServerName, conf.NextProtos = host, []string{"h2"}
	conn := tls.Client(raw, conf)
	switch err = conn.HandshakeContext(ctx); {
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
