package relay

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// relayedReply is a response on its way to its client, from one source after the other. A loop or
// fasthttp drives a relayedReply. fasthttp calls WriteTo at most once and CloseWithError exactly
// once.
type relayedReply struct {
	phase    phase
	source   source
	follower Follower
	stop     func() // stops watching the client
	client   clientSide
	events   bool // the response is an event stream
	must     bool // copy of ReplyOptions.MustClose

	show    sse.Show  // s.event, bound once
	now     time.Time // when the present bytes were read
	out     []byte    // events to send
	whole   *[]byte   // the body, or its beginning, that was read ahead
	ahead   []byte    // bytes made from whole that were not sent yet
	unread  []byte    // bytes that Read has not returned yet
	sent    int64     // bytes of the body written to the client's connection
	outcome Outcome
	cause   error
}

// phase is a stream's state between and within its sources.
type phase uint8

const (
	reading  phase = iota // a source is being read
	awaiting              // a source has ended, and another one will follow
	ended                 // no source follows, and the response ends properly
	cut                   // no source follows, and the connection will be cut
)

var streams = sync.Pool{New: func() any {
	s := new(relayedReply)
	s.show = s.event
	return s
}}

var wholeBodies = sync.Pool{New: func() any {
	b := make([]byte, 0, largeBufferBytes)
	return &b
}}

// errClientLeft ends the connection of a client that has left. fasthttp does not log errors with
// these words.
var errClientLeft = errors.New("client left: broken pipe")

// event decides what the client gets for e.
func (s *relayedReply) event(e sse.Event, out []byte) (rest []byte, enough bool) {
	s.source.note(e)
	if s.follower == nil {
		return append(out, e.Raw...), false
	}
	return s.follower.Event(e, out, s.now)
}

// pass appends the bytes that the client gets for body, a piece read from the source. At the end of
// the source, pass also finishes the source.
func (s *relayedReply) pass(body, out []byte) []byte {
	out, enough := s.source.filter.Feed(body, out, s.show)
	switch {
	case enough:
		return s.conclude(out, Enough, nil, false)
	case s.source.isOver():
		return s.finish(out, s.source.e.ended)
	}
	return out
}

// finish ends the source with io.EOF or a failure. finish drops the held-back part of a failed
// source's unfinished event.
func (s *relayedReply) finish(out []byte, err error) []byte {
	if err == io.EOF {
		err = s.source.end()
	}
	if err != io.EOF {
		return s.conclude(out, upstreamOutcome(err), err, s.source.filter.Torn())
	}
	out, enough, torn := s.source.last(out, s.show)
	if enough {
		return s.conclude(out, Enough, nil, torn)
	}
	return s.conclude(out, Complete, nil, torn)
}

// conclude tells the follower that a source has ended with o, and asks whether another source
// follows. torn means that out ends inside an event.
func (s *relayedReply) conclude(out []byte, o Outcome, err error, torn bool) []byte {
	whole, more := len(out), false
	if torn {
		out = append(out, "\n\n"...)
	}
	start := len(out)
	if s.follower != nil && o != ClientGone {
		out, more = s.follower.End(out, o, err)
	}
	told := len(out) > start
	if s.source.filter.Reset(); !told && !more {
		out = out[:whole]
	}
	switch failed := o != Complete && o != Enough; {
	case more:
		s.phase = awaiting
	case failed && !told:
		s.fail(o, err)
		s.phase = cut
	case failed:
		s.fail(o, err)
		s.phase = ended
	default:
		s.phase = ended
	}
	return out
}

// noSource ends a stream after Follower.Next has failed, unless the follower asks for yet another
// source.
func (s *relayedReply) noSource(out []byte, err error) []byte {
	if errors.Is(err, ErrCanceled) {
		return s.conclude(out, ClientGone, err, false)
	}
	return s.conclude(out, UpstreamFailed, err, false)
}

// fill waits for the next bytes and appends them to out.
func (s *relayedReply) fill(out []byte) []byte {
	if s.phase == awaiting {
		return s.succeed(out)
	}
	body, err := s.source.e.Next()
	if s.now = time.Now(); err != nil {
		return s.finish(out, err)
	}
	return s.pass(body, out)
}

// succeed waits for the next source while the client is watched.
func (s *relayedReply) succeed(out []byte) []byte {
	watch := new(watched) // used if nobody watches the connection
	if cc := clientConnOf(s.client.conn); cc != nil {
		watch = &cc.watched
	}
	var e *Exchange
	var err error
	here := watch.also(s.follower.Left)
	if here {
		e, err = nextSource(s.follower)
		here = watch.alone()
	}
	switch {
	case !here:
		s.source.e = e
		s.fail(ClientGone, newError(PhaseBody, ErrCanceled))
		s.phase = cut
	case err != nil:
		return s.noSource(out, err)
	default:
		s.source.begin(e, s.must)
		s.phase = reading
	}
	return out
}

// step returns the next piece to send, at least one byte, and counts it. io.EOF means that the
// response may end properly, also after a failure that the follower has reported. After another
// error the connection must be cut.
func (s *relayedReply) step() (piece []byte, err error) {
	switch piece = s.ahead; {
	case len(piece) > 0:
	case s.events:
		s.hold(false, time.Now())
		piece, err = s.next()
		s.hold(true, s.now)
	default:
		piece, err = s.next()
	}
	s.ahead = nil
	s.sent += int64(len(piece))
	return piece, err
}

func (s *relayedReply) next() (piece []byte, err error) {
	for len(piece) == 0 {
		switch {
		case s.phase == ended:
			s.closeUpstream()
			return nil, io.EOF
		case s.phase == cut && s.outcome == ClientGone:
			return nil, errClientLeft
		case s.phase == cut:
			return nil, s.cause
		case s.events:
			s.out = s.fill(s.out[:0])
			piece = s.out
			s.release()
		default:
			piece = s.nextPiece()
		}
	}
	return piece, nil
}

// nextPiece returns the next piece of a body that is not an event stream, without a copy.
func (s *relayedReply) nextPiece() []byte {
	piece, err := s.source.e.Next()
	switch {
	case err == io.EOF:
		s.phase = ended
	case err != nil:
		s.fail(upstreamOutcome(err), err)
		s.phase = cut
	case s.follower != nil:
		s.follower.Body(piece, false)
	}
	if s.source.e.drained() {
		s.unwatch() // the client may leave after it has this piece
	}
	return piece
}

// hold tells the follower whether the client holds up an event stream's source.
func (s *relayedReply) hold(held bool, at time.Time) {
	if s.follower != nil && s.phase == reading {
		s.follower.Held(held, at)
	}
}

// release releases an event stream's source once it has ended. After the last source, release also
// stops watching the client. The client may leave once it has the rest.
func (s *relayedReply) release() {
	switch {
	case s.phase == reading:
	case s.phase == awaiting && s.source.e != nil:
		s.source.e.Close()
		s.source.e = nil
	case s.phase != awaiting:
		s.closeUpstream()
	}
}

// fail stores the first failure.
func (s *relayedReply) fail(o Outcome, err error) {
	if s.outcome == Complete {
		s.outcome, s.cause = o, err
	}
}

func upstreamOutcome(err error) Outcome {
	switch {
	case errors.Is(err, ErrCanceled):
		return ClientGone
	case errors.Is(err, ErrIdle):
		return IdleTimeout
	case errors.Is(err, ErrDeadline):
		return TotalTimeout
	}
	return UpstreamFailed
}

func clientOutcome(err error) Outcome {
	if isTimeout(err) {
		return SlowReader
	}
	return ClientGone
}

// SupportsBodyWriteTo makes fasthttp call WriteTo.
func (s *relayedReply) SupportsBodyWriteTo() bool { return true }

// WriteTo sends the body to w, fasthttp's writer, piece by piece. If the length is unknown, the
// writer sends each piece as a chunk. If the length is known, WriteTo flushes each piece.
func (s *relayedReply) WriteTo(w io.Writer) (n int64, err error) {
	flusher, _ := w.(interface{ Flush() error })
	s.client.until = time.Time{} // the server has set its own deadline since the last response
	for {
		piece, err := s.step()
		s.client.bound()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if _, err = w.Write(piece); err == nil && flusher != nil {
			err = flusher.Flush()
		}
		if err != nil {
			s.fail(clientOutcome(err), err)
			return n, err
		}
		n += int64(len(piece))
	}
}

// Read is for a caller that does not use WriteTo.
func (s *relayedReply) Read(p []byte) (int, error) {
	if len(s.unread) == 0 {
		piece, err := s.step()
		s.client.bound()
		if err != nil {
			return 0, err
		}
		s.unread = piece
	}
	n := copy(p, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

// clientSide is the connection of a client, with its write deadline.
type clientSide struct {
	conn  net.Conn
	slow  time.Duration // time limit of one write
	until time.Time     // present write deadline
}

// bound sets the deadline of the next write to c.slow from now, or somewhat less. Setting a
// deadline for each token would cost too much.
func (c *clientSide) bound() {
	if c.conn == nil {
		return
	}
	if now := time.Now(); c.until.Sub(now) < c.slow-c.slow/4 {
		c.until = now.Add(c.slow)
		c.conn.SetWriteDeadline(c.until)
	}
}

// unbound removes the write deadline. The deadline of a clientConn is removed when the next request
// is read, because fasthttp still has to write a last line end. The deadline of another connection
// is removed now.
func (c *clientSide) unbound() {
	if cc := clientConnOf(c.conn); cc != nil {
		cc.bounded = true
	} else if c.conn != nil {
		c.conn.SetWriteDeadline(time.Time{})
	}
}

// unwatch stops watching the client, so that its leaving does not end the exchange.
func (s *relayedReply) unwatch() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// closeUpstream stops watching the client, and then closes the exchange.
func (s *relayedReply) closeUpstream() {
	s.unwatch()
	if s.source.e != nil {
		s.source.e.Close()
		s.source.e = nil
	}
}

// CloseWithError is called by fasthttp when the response has been written or
// has failed.
func (s *relayedReply) CloseWithError(err error) error {
	if err != nil {
		s.fail(clientOutcome(err), err)
	}
	s.client.unbound()
	if cc := clientConnOf(s.client.conn); cc != nil && s.outcome == SlowReader {
		cc.resetOnClose()
	}
	s.closeUpstream()
	s.done()
	return nil
}

// done tells the follower, and recycles s.
func (s *relayedReply) done() {
	follower, outcome, sent, cause := s.follower, s.outcome, s.sent, s.cause
	s.recycle()
	if follower != nil {
		follower.Done(outcome, sent, cause)
	}
}

// recycle resets everything except the buffers.
func (s *relayedReply) recycle() {
	if s.whole != nil && cap(*s.whole) <= wholeBodyBytes {
		wholeBodies.Put(s.whole)
	}
	s.source.filter.Reset()
	out := s.out[:0]
	if cap(out) > keptEventBytes {
		out = nil
	}
	filter, show := s.source.filter, s.show
	*s = relayedReply{}
	s.source.filter, s.show, s.out = filter, show, out
	streams.Put(s)
}
