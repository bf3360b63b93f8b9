package relay

import (
	"errors"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// Outcome is how a source, or the response to a client, ended.
type Outcome uint8

// Outcomes.
const (
	Complete       Outcome = iota // the source ended properly, the client was sent all of it
	ClientGone                    // the client left, or its connection broke
	SlowReader                    // the client did not read for ReplyOptions.SlowReader
	UpstreamFailed                // the upstream broke off or sent something malformed
	IdleTimeout                   // the upstream was silent for Exchange.SetIdleTimeout
	TotalTimeout                  // the time of Exchange.SetReadDeadline passed
	Enough                        // Follower.Event wanted no more of the source; never of a response
)

var outcomeNames = [...]string{
	"complete", "client_gone", "slow_reader", "upstream_failed", "idle_timeout", "total_timeout", "enough",
}

func (o Outcome) String() string { return outcomeNames[o] }

// Follower follows one response and decides what the client gets of its
// sources. Its methods are called one at a time, but for Left. Byte slices are
// valid during the call. The methods should be quick, but for Next: other
// streams wait meanwhile.
//
// The client's bytes are those that the methods append to out, and the blocks
// of the sources that are not events (comments, retry) or too long to be one
// (sse.MaxEventBytes): those go through unseen. A follower copies the events that
// it withholds, within a bound of its own.
type Follower interface {
	// Event is called for each event of an event stream. It appends to out what
	// the client is to get now: e.Raw for the event as it came, nothing to drop
	// or withhold it, whole events in its place. An event without Raw announces one
	// that is too long and goes through next. The event was read at that time,
	// together with others perhaps. With enough, nothing more is wanted of this
	// source: what it still sends is dropped, and its exchange is closed.
	Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
	// Body is called for each piece of any other body before it is sent. A
	// body of up to 256 KiB is one piece, and whole.
	Body(piece []byte, whole bool)
	// End is called once for each event stream that has ended, and for each
	// failure of Next. o and err say how: Complete, Enough, or a failure and its
	// cause. It is not called where the client is gone (ErrCanceled says so too)
	// or does not read, the Loops are closed, or the Follower has panicked. It
	// appends to out what the client still is to get: events that were withheld,
	// or those that tell of the failure. With more, another source follows.
	// Without, the response ends as HTTP demands; but after a failure for which
	// nothing was appended the connection is cut, so that the client cannot take
	// the response for whole.
	End(out []byte, o Outcome, err error) (rest []byte, more bool)
	// Next brings the next source after End has asked for more: an event stream
	// with a status below 300, whose head has been read and whose first event
	// has been awaited. The connection of the source before is back in its pool,
	// or closed. Next may block; it runs on a goroutine that may do so. An error
	// means that there is none: it comes back in End, with UpstreamFailed. The
	// exchange belongs to the relay, which closes it. Where ReplyOptions.Parked has
	// been called, the client's request is not there any more.
	Next() (*Exchange, error)
	// Left is called at most once, while Next is under way or has just returned:
	// the client has left or does not read, or the Loops are closed, so Next
	// should return. Nothing but Done follows.
	Left()
	// Done is called exactly once, last, when all exchanges have been closed.
	// err is the cause of an outcome other than Complete, sent the bytes of the
	// body, without chunks' size lines, that were handed to the client's connection.
	Done(o Outcome, sent int64, err error)
}

// OneSource is embedded by followers that never ask for more.
type OneSource struct{}

// Next is never called.
func (OneSource) Next() (*Exchange, error) { return nil, errOneSource }

// Left is never called.
func (OneSource) Left() {}

var (
	errOneSource = errors.New("response has one source")
	// errNoEvents stands for a source that Next must not return.
	errNoEvents = errors.New("next source is no event stream")
	// errFollower ends a stream whose Follower has panicked.
	errFollower = errors.New("following the stream failed")
)

// nextSource is Next, held to its promise.
func nextSource(f Follower) (*Exchange, error) {
	e, err := f.Next()
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, errNoEvents
	case !e.IsSSE() || e.Status() >= 300:
		e.Close()
		return nil, errNoEvents
	}
	return e, nil
}
