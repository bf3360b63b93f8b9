package power

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// fence is the way to one BMC: nothing goes to another host, whatever a link, a
// redirect or a session's Location says, and no answer is read beyond maxAnswer.
//
// turn bounds the requests of one reading: gofish keeps one context for all. It
// is set between requests, by the goroutine that makes them.
type fence struct {
	host, scheme string
	limit        time.Duration // of one answer, its body included
	turn         context.Context
	next         *http.Transport
}

func (c *RedfishConfig) transport() (*fence, error) {
	u, err := url.Parse(c.Address)
	if err != nil {
		return nil, fmt.Errorf("power.redfish.address: %w", err)
	}
	t, err := pki.Service(pki.Files{CA: c.CA})
	if err != nil {
		return nil, fmt.Errorf("power.redfish.ca: %w", err)
	}
	pin, err := parsePin(c.Pin)
	if err != nil {
		return nil, fmt.Errorf("power.redfish.certificate_sha256: %w", err)
	}
	if pin != nil {
		t.InsecureSkipVerify = true // VerifyConnection compares the certificate itself
		t.VerifyConnection = func(cs tls.ConnectionState) error { return checkPin(cs, pin) }
	}
	return &fence{host: u.Host, scheme: u.Scheme, limit: c.Timeout.Std(), turn: context.Background(),
		next: &http.Transport{
			TLSClientConfig: t, TLSHandshakeTimeout: c.Timeout.Std(),
			MaxConnsPerHost: 1, MaxIdleConns: 1, IdleConnTimeout: 2 * time.Minute,
			MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
		}}, nil
}

// parsePin reads a fingerprint as openssl prints it, with or without colons.
func parsePin(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	pin, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(pin) != sha256.Size {
		return nil, errors.New("is no SHA-256 fingerprint; write 64 hexadecimal digits, colons between them are fine")
	}
	return pin, nil
}

func checkPin(cs tls.ConnectionState, pin []byte) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the BMC shows no certificate")
	}
	if sum := sha256.Sum256(cs.PeerCertificates[0].Raw); !bytes.Equal(sum[:], pin) {
		return fmt.Errorf("the BMC's certificate is not the one that power.redfish.certificate_sha256 names; its "+
			"fingerprint is %x", sum)
	}
	return nil
}

func (f *fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != f.host || r.URL.Scheme != f.scheme || r.URL.User != nil {
		return nil, errors.New("the BMC sends its clients to another address; that is not followed")
	}
	ctx, cancel := context.WithTimeout(r.Context(), f.limit)
	stop := context.AfterFunc(f.turn, cancel)
	end := func() { stop(); cancel() }
	r = r.Clone(ctx)
	r.Close = false // gofish asks for a connection, and a TLS handshake, per request
	resp, err := f.next.RoundTrip(r)
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &bounded{resp.Body, ctx, maxAnswer, end}
	return resp, nil
}

// CloseIdleConnections is what http.Client calls.
func (f *fence) CloseIdleConnections() { f.next.CloseIdleConnections() }

// bounded fails past its bytes, where io.LimitReader would look like an end. It
// closes itself when it fails, which gofish does not do then.
type bounded struct {
	io.ReadCloser
	ctx  context.Context
	left int
	end  func()
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if n > b.left {
		n, err = b.left, fmt.Errorf("the BMC's answer has more than %d bytes", maxAnswer)
	}
	b.left -= n
	if late := b.ctx.Err(); late != nil {
		err = late // a server that sees its client go may end the body as if that were all
	}
	if err != nil && err != io.EOF {
		_ = b.Close()
	}
	return n, err
}

func (b *bounded) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}
