package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// complainEvery is how often at most the reason why one node has not answered yet makes a line,
// where it changes.
const complainEvery = time.Minute

// complaint is what has been said of a node that has never answered. Of others the breaker tells.
type complaint struct {
	failed int    // checks in a row
	why    string // said last
	at     time.Time
}

// complain says why a node has not answered yet: at the second failed check, and again when the
// reason is another.
func (p *prober) complain(err error, now time.Time) {
	c := &p.complained
	if err == nil || p.node.State() != Unproven {
		*c = complaint{}
		return
	}
	c.failed++
	why := reason(err)
	if c.failed < 2 || why == c.why || now.Sub(c.at) < complainEvery {
		return
	}
	c.why, c.at = why, now
	p.fleet.opts.Log.Warn("node has not answered yet, so it takes no requests", "node", p.node.ID, "address", p.node.Info().Address, "error", err)
}

// reason is what an error says without the ports of this connection, so that the same is told apart
// from something new.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// plainError takes the method and URL off net/http's error, which the operator knows from the node,
// and says what some of its errors mean.
func plainError(err error) error {
	var wrapped *url.Error
	var network *net.OpError
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case strings.Contains(err.Error(), "readLoopPeekFailLocked") && !errors.As(err, &network): // bytes where nothing was asked yet
		return errors.New("it speaks before it is asked, so it is no HTTP server")
	case strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`): // a TLS alert
		return fmt.Errorf("it speaks TLS (is its URL https://?): %w", err)
	}
	return missingCertificate(err)
}

// missingCertificate names the setting behind an error of TLS.
func missingCertificate(err error) error {
	var refused tls.AlertError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused), strings.Contains(err.Error(), "remote error: tls: "):
		return fmt.Errorf("%w; an agent takes certificates of role router or ctl: set upstream_tls.ca, .cert and .key", err)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w; an agent's certificate is checked with upstream_tls.ca (and shown .cert and .key), a backend's with its own ca", err)
	}
	return err
}
