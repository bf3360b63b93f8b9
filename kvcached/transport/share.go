package transport

import (
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// HostShare divides MaxInFlight: one host may have this part. Hosts that announce bodies and do not
// send them leave room for others.
const HostShare = 4

// GrantedShare divides MaxInFlight: so much may be granted, since grants cost the grantee nothing.
// The rest is left to streams. Grants count for a host's HostShare as well, so a stream may have to
// wait until its host gives some back.
const GrantedShare = 2

// smallest is the longest body of a question that counts for nothing. Questions pass while blocks
// take all of a host's share; MaxOps bounds their number.
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

// holdFor counts n bytes as in flight for the host, too.
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

// holdGranted counts n bytes as granted, too.
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

// holdQuestion is hold for a body other than a block. A message that gives back grants is always
// small enough to pass: it makes room.
func (op *operation) holdQuestion(n int) (release func(), err error) {
	if n <= smallest {
		return func() {}, nil
	}
	return op.hold(n)
}
