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

// fence is the transport to one BMC. The fence sends nothing to another host, whatever a link, a
// redirect or a session's Location says. The fence reads at most maxAnswer bytes of an answer.
//
// turn is the context of the requests of one reading, because gofish keeps a single context. The
// goroutine that makes the requests sets turn between them.
type fence struct {
	host, scheme string
	limit        time.Duration // time limit of one answer with its body
	turn         context.Context
	next         *http.Transport
}

func (c *RedfishConfig) transport() (*fence, error) {
	u, err := url.Parse(c.Address)
	if err != nil {
		return nil, fmt.Errorf("power.redfish.address: %w", err)
	}
	id, err := pki.Load(pki.Files{CA: c.CA})
	if err != nil {
		return nil, fmt.Errorf("power.redfish.ca: %w", err)
	}
	t := id.Outside(u.Hostname())
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

// parsePin parses a fingerprint as openssl prints it, with or without colons.
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
	r.Close = false // gofish sets Close, which costs a connection and a TLS handshake per request
	resp, err := f.next.RoundTrip(r)
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &bounded{resp.Body, ctx, maxAnswer, end}
	return resp, nil
}

// CloseIdleConnections is called by http.Client.
func (f *fence) CloseIdleConnections() { f.next.CloseIdleConnections() }

// bounded is a body that fails after its limit of bytes, whereas io.LimitReader would end. The body
// closes itself when it fails, because gofish does not close it then.
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
		err = late // a server may end the body regularly when the client has gone
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
