package transport

import (
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// HostShare is the part of MaxInFlight that one host may have, so that those who announce bodies
// and do not send them leave room for others. It is a divisor.
const HostShare = 4

// GrantedShare is the part of MaxInFlight that may be granted, so that blocks always go to other
// hosts by stream: a grant costs its grantee nothing. It is a divisor. What a host was granted
// counts for its HostShare, too: a stream that it asks for meanwhile may have to wait until it
// gives some back.
const GrantedShare = 2

// smallest is the longest body of a question that counts for nothing, so that questions pass while
// blocks take all of a host's share; MaxOps bounds how many there are.
const smallest = 4 << 10

// hold counts n payload bytes as in flight until the returned function is called.
func (s *Server) hold(n int) (release func(), err error) {
	return hold(&s.bytes, s.o.MaxInFlight, n)
}

func hold(bytes *atomic.Int64, limit int64, n int) (release func(), err error) {
	if total := bytes.Add(int64(n)); total > limit && total != int64(n) {
		bytes.Add(int64(-n))
		return nil, wire.Busy
	}
	return func() { bytes.Add(int64(-n)) }, nil
}

// holdFor does the same, and counts them for the host that asked, too.
func (s *Server) holdFor(h *host, n int) (release func(), err error) {
	mine, err := hold(&h.bytes, s.o.MaxInFlight/HostShare, n)
	if err != nil {
		return nil, err
	}
	all, err := s.hold(n)
	if err != nil {
		mine()
		return nil, err
	}
	return func() { all(); mine() }, nil
}

// holdGranted is holdFor of what is to be granted.
func (s *Server) holdGranted(h *host, n int) (release func(), err error) {
	granted, err := hold(&s.granter.bytes, s.o.MaxInFlight/GrantedShare, n)
	if err != nil {
		return nil, err
	}
	all, err := s.holdFor(h, n)
	if err != nil {
		granted()
		return nil, err
	}
	return func() { all(); granted() }, nil
}

func (op *operation) hold(n int) (release func(), err error) {
	return op.link.s.holdFor(op.link.host, n)
}

// holdQuestion is hold for a body that is no block. That by which a peer gives back what it was
// granted is small enough to pass always: it makes room.
func (op *operation) holdQuestion(n int) (release func(), err error) {
	if n <= smallest {
		return func() {}, nil
	}
	return op.hold(n)
}
