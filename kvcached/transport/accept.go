package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Codes that end connections and streams.
const (
	codeDone    quic.ApplicationErrorCode = 0
	codeRefused quic.ApplicationErrorCode = 1 // a limit on connections

	codeGaveUp quic.StreamErrorCode = 0 // nobody waits for the stream any more
	codeBroken quic.StreamErrorCode = 1 // the operation failed; the answer, if any, says why
)

func (s *Server) acceptQUIC(l *quic.Listener) {
	for {
		c, err := l.Accept(s.stop)
		if err != nil {
			return // closed
		}
		s.workers.Go(func() { s.serveQUIC(c) })
	}
}

// serveQUIC serves the streams of one connection.
func (s *Server) serveQUIC(c *quic.Conn) {
	h, name := s.enter(c.RemoteAddr())
	if h == nil {
		_ = c.CloseWithError(codeRefused, "busy")
		return
	}
	defer s.leave(name)
	if !s.budget.admit(c) {
		s.count.refusedConns.Add(1)
		_ = c.CloseWithError(codeRefused, "busy")
		return
	}
	defer s.budget.drop(c)
	p := s.link(h, name, c.ConnectionState().TLS)
	p.quic = c
	var streams sync.WaitGroup
	for {
		st, err := c.AcceptStream(s.stop)
		if err != nil {
			break
		}
		if !s.begin() {
			reset(st, codeGaveUp)
			continue
		}
		streams.Go(func() {
			defer s.end()
			p.serveStream(st)
		})
	}
	p.linger()
	_ = c.CloseWithError(codeDone, "")
	streams.Wait()
}

// linger waits for the last answer to arrive at an older peer, because closing the connection drops
// bytes that are still on the way, and those that the peer has not read. Other peers have read all
// answers when their streams end.
func (p *link) linger() {
	answered := p.answered.Load()
	if answered == 0 || p.quic.Context().Err() != nil {
		return
	}
	end := time.Unix(0, answered).Add(lingerFor + 4*p.quic.ConnectionStats().SmoothedRTT)
	await.For(p.quic.Context(), time.Until(end))
}

// lingerFor is the time for an answer to arrive, in addition to four round trips.
const lingerFor = 50 * time.Millisecond

// link is one connection of a peer, as its operations see it.
type link struct {
	s      *Server
	host   *host
	remote Remote
	quic   *quic.Conn // nil on the TLS lane

	certificate string // its name, for the audit log

	answered atomic.Int64 // Unix ns of the last complete answer
}

func (s *Server) link(h *host, name string, cs tls.ConnectionState) *link {
	return &link{s: s, host: h, remote: Remote{Host: name, Role: roleOf(cs)}, certificate: pki.NameIn(&cs)}
}

func roleOf(cs tls.ConnectionState) pki.Role {
	if len(cs.PeerCertificates) == 0 {
		return ""
	}
	return pki.RoleOf(cs.PeerCertificates[0])
}

func reset(st *quic.Stream, code quic.StreamErrorCode) {
	st.CancelRead(code)
	st.CancelWrite(code)
}

// serveStream serves the one operation of a stream.
func (p *link) serveStream(st *quic.Stream) {
	op := operations.Get().(*operation)
	defer op.free()
	op.reset(p, st)
	_ = st.SetReadDeadline(time.Now().Add(p.s.o.Stall))
	if err := op.next(); err != nil && !op.refusable(err) {
		reset(st, codeBroken)
		return
	}
	if op.serve(st.Context()) != nil {
		reset(st, codeBroken)
		return
	}
	_ = st.Close()
	p.answered.Store(time.Now().UnixNano())
	if op.left == 0 && op.invalid == nil {
		_ = st.SetReadDeadline(time.Now().Add(p.s.o.Stall))
		end(st) // comes once the peer has read the answer; older peers send it with the request
	}
	st.CancelRead(codeGaveUp) // no effect if the end was read
}

func (s *Server) acceptTLS() {
	for {
		raw, err := s.o.TCP.Accept()
		if err != nil {
			if s.closing.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			s.count.acceptErrors.Add(1)
			s.warn("accept", "connection cannot be accepted", "error", err)
			await.For(s.stop, 100*time.Millisecond) // the process has most likely no descriptor left
			continue
		}
		s.workers.Go(func() { s.serveTLS(raw) })
	}
}

// serveTLS serves the operations of one connection, one after the other.
func (s *Server) serveTLS(raw net.Conn) {
	defer raw.Close()
	h, name := s.enter(raw.RemoteAddr())
	if h == nil {
		return
	}
	defer s.leave(name)
	defer context.AfterFunc(s.stop, func() { _ = raw.Close() })()
	out := &cork{Conn: raw}
	c := &corked{tls.Server(out, s.tls), out}
	ctx, cancel := context.WithTimeout(s.stop, s.o.Stall)
	err := shake(ctx, c.Conn)
	cancel()
	if err != nil {
		s.count.handshakes.Add(1)
		s.o.Logger.Debug("handshake failed", "peer", name, "error", err)
		s.o.Audit.Stranger("tls-lane", raw.RemoteAddr(), err)
		return
	}
	p := s.link(h, name, c.ConnectionState())
	op := operations.Get().(*operation)
	defer op.free()
	op.reset(p, c)
	for p.serveNext(op) {
	}
	_ = raw.SetDeadline(time.Now().Add(time.Second)) // time to send the TLS alert that ends the connection
	_ = c.Close()
}

// serveNext serves one operation and tells whether the connection can carry another.
func (p *link) serveNext(op *operation) bool {
	_ = op.SetReadDeadline(time.Now().Add(p.s.o.Idle))
	err := op.next()
	if err != nil && !op.refusable(err) {
		return false
	}
	if !p.s.begin() {
		return false
	}
	defer p.s.end()
	refused := err != nil
	if op.serve(p.s.stop) != nil || refused {
		return false
	}
	return op.drain() == nil
}

// refusable tells whether a peer can be told that its bytes are no frame.
func (op *operation) refusable(err error) bool {
	var status wire.Status
	if op.invalid = nil; errors.As(err, &status) {
		op.invalid = err
		return true
	}
	return false
}
