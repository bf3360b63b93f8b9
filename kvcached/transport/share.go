package transport

import (
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// HostShare is the divisor of MaxInFlight for one host. It leaves room for others if a host
// announces bodies and does not send them.
const HostShare = 4

// GrantedShare is the divisor of MaxInFlight for granted blocks, because grants cost the reading
// host nothing. The rest is left to streams. Grants also count in their host's share, so a stream
// may have to wait until its host gives some back.
const GrantedShare = 2

// smallest is the longest body of a small request that is not counted. Such requests pass even if
// blocks take a host's whole share; MaxOps bounds their number.
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

// holdFor also counts n bytes as in flight for the host.
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

// holdGranted also counts n bytes as granted.
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

// holdQuestion is hold for a body without a block. A message that gives back grants, and so makes
// room, is always small enough to pass.
func (op *operation) holdQuestion(n int) (release func(), err error) {
	if n <= smallest {
		return func() {}, nil
	}
	return op.hold(n)
}
