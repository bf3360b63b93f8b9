package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Phase is the step of an exchange that failed.
type Phase uint8

// Phases in the order in which an exchange goes through them.
const (
	PhaseDial  Phase = iota // connecting, including the TLS handshake
	PhaseWrite              // sending the request
	PhaseHead               // waiting for the status line and the header
	PhaseBody               // reading the body
)

var phaseNames = [...]string{"dial", "write", "head", "body"}

func (p Phase) String() string { return phaseNames[p] }

// Kind is the kind of a failure.
type Kind uint8

// Kinds of failures.
const (
	KindOther    Kind = iota
	KindRefused       // nobody listens, or the address cannot be reached or resolved
	KindReset         // the connection ended too early: FIN, RST, broken pipe
	KindTimeout       // one of our deadlines passed
	KindCanceled      // Cancel was called
	KindProtocol      // the response is not acceptable HTTP/1.1
	KindTLS           // handshake or certificate failure
	KindLocal         // this host lacks descriptors or memory, or the pool is full
)

var kindNames = [...]string{"other", "refused", "reset", "timeout", "canceled", "protocol", "tls", "local"}

func (k Kind) String() string { return kindNames[k] }

// Error says in which phase and in which way an exchange failed. Err is never nil.
type Error struct {
	Phase Phase
	Kind  Kind
	Err   error
}

func (e *Error) Error() string {
	return "upstream " + e.Phase.String() + ": " + e.Kind.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Causes that callers distinguish with errors.Is.
var (
	// ErrCanceled means that the exchange was canceled through its Abort.
	ErrCanceled = errors.New("exchange canceled")
	// ErrStopped means that this side ended the exchange by Abort.Stop.
	ErrStopped = errors.New("exchange stopped")
	// ErrIdle means that the upstream has sent nothing for the idle timeout.
	ErrIdle = errors.New("idle timeout")
	// ErrSilent means that Link.Cut was called, because the upstream no longer acknowledges
	// packets.
	ErrSilent = errors.New("the node acknowledges no packets")
	// ErrDeadline means that the deadline of the phase or of the whole response has passed.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrStale means that a reused connection broke before an answer, probably because the server
	// had closed it while it was idle, and that the request was not sent again.
	ErrStale = errors.New("reused connection broke")
	// ErrPoolFull means that PoolOptions.MaxConnections connections are in use.
	ErrPoolFull = errors.New("connection limit reached")
	// ErrPoolClosed means that the pool has been closed.
	ErrPoolClosed = errors.New("pool closed")
)

// protocolError is the cause of every KindProtocol error.
type protocolError string

func (e protocolError) Error() string { return string(e) }

// newError classifies err, which must not be nil.
func newError(phase Phase, err error) *Error {
	return &Error{Phase: phase, Kind: classify(err), Err: err}
}

func classify(err error) Kind {
	switch {
	case errors.Is(err, ErrCanceled), errors.Is(err, ErrStopped), errors.Is(err, context.Canceled):
		return KindCanceled
	case IsLocal(err), errors.Is(err, ErrPoolFull):
		return KindLocal
	case isTimeout(err):
		return KindTimeout
	case isA[protocolError](err):
		return KindProtocol
	case isReset(err):
		return KindReset
	case isTLS(err):
		return KindTLS
	case isUnreachable(err):
		return KindRefused
	}
	return KindOther
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ErrIdle) || errors.Is(err, ErrDeadline) ||
		errors.Is(err, context.DeadlineExceeded)
}

func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, ErrSilent)
}

func isTLS(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "remote error" || op.Op == "local error") {
		return true // a TLS alert, whose type is private
	}
	return isA[tls.RecordHeaderError](err) || isA[*tls.CertificateVerificationError](err) ||
		isA[x509.HostnameError](err) || isA[x509.UnknownAuthorityError](err)
}

func isUnreachable(err error) bool {
	return isA[*net.DNSError](err) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, os.ErrNotExist)
}

// isA says whether err or one of its causes has the type E.
func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
