package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// HandshakeError says that TLS with etcd fails. A request only says that it had no answer in time.
type HandshakeError struct {
	Endpoint string
	Err      error // what TLS says
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("TLS with etcd at %s fails: %v; are etcd.ca, etcd.cert and etcd.key of its CA?", e.Endpoint,
		e.Err)
}

func (e *HandshakeError) Unwrap() error { return e.Err }

// How long the search for a failing handshake takes at most, and how long etcd may take to say that
// it does not like the client's certificate.
const (
	handshakeIn = 3 * time.Second
	refusalIn   = time.Second
)

// Why is err of a request that had no answer in time; where TLS with an endpoint fails, it wraps
// the *HandshakeError, too. It takes 3 s at most.
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

// shake does what a client does first, and returns what TLS says against it; nil: nothing, or the
// endpoint is not reached, or not by TLS over TCP.
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
	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf = conf.Clone()
	conf.ServerName, conf.NextProtos = host, []string{"h2"}
	conn := tls.Client(raw, conf)
	switch err = conn.HandshakeContext(ctx); {
	case errors.Is(err, io.EOF):
		return errors.New("it closes the connection in the handshake, as one without TLS does")
	case err == nil:
		_ = conn.SetReadDeadline(time.Now().Add(refusalIn))
		// with TLS 1.3 what the server thinks of the certificate comes after the handshake
		_, err = conn.Read(make([]byte, 1))
	}
	if ofTLS(err) {
		return err
	}
	return nil
}

// ofTLS tells errors of TLS from those of the network.
func ofTLS(err error) bool {
	var bad *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var alert *net.OpError
	return errors.As(err, &bad) || errors.As(err, &plain) || errors.As(err, &alert) && alert.Op == "remote error"
}
