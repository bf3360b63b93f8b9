package transport

import (
	"context"
	"errors"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/audit"
)

// recorded records a QUIC client whose certificate is refused in the handshake. The end of ctx is
// the end of the connection, and its cause is that of the handshake if it has failed. A cause that
// the client has sent is none: its text is the client's.
func (s *Server) recorded(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	if s.o.Audit != nil {
		at := client.RemoteAddr
		context.AfterFunc(ctx, func() {
			cause := context.Cause(ctx)
			if own, ok := errors.AsType[*quic.TransportError](cause); ok && !own.Remote {
				s.o.Audit.Stranger("quic", at, cause)
			}
		})
	}
	return ctx, nil
}

// forbidden records a peer whose role may not do what it asks.
func (op *operation) forbidden() {
	l := op.link
	l.s.o.Audit.Refuse(audit.Refusal{Reason: audit.ReasonRole, Key: l.certificate, Client: l.remote.Host,
		Port: "peers", Asked: op.f.Op.String(), Detail: "a certificate of this role may not do it"})
}
