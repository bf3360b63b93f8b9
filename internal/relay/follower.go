package relay

import (
	"errors"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// Outcome is the way in which a source, or the response to a client, ended.
type Outcome uint8

// Outcomes.
const (
	Complete       Outcome = iota // the source ended properly, and all of it was sent to the client
	ClientGone                    // the client left, or its connection broke
	SlowReader                    // the client has read nothing for ReplyOptions.SlowReader
	UpstreamFailed                // the upstream broke off, or sent a malformed response
	IdleTimeout                   // the upstream was silent for the time of SetIdleTimeout
	TotalTimeout                  // the time of SetReadDeadline has passed
	Enough                        // Follower.Event wanted no more of the source; not used for a response
)

var outcomeNames = [...]string{
	"complete", "client_gone", "slow_reader", "upstream_failed", "idle_timeout", "total_timeout", "enough",
}

func (o Outcome) String() string { return outcomeNames[o] }

// Follower follows one response and decides what the client gets of its sources. A Follower's
// methods are called one at a time, except Left. Byte slices are valid during the call. The
// methods, except Next, should be quick, because other streams wait meanwhile.
//
// The client gets the bytes that the methods append to out. Two kinds of blocks pass to the client
// unseen: blocks that are not events (comments, retry), and blocks longer than sse.MaxEventBytes. A
// follower must copy the events that it withholds, and bound their size itself.
type Follower interface {
	// Event is called for each event of an event stream. Event appends to out the bytes that the
	// client gets now: e.Raw to forward the event unchanged, nothing to drop or withhold the event,
	// or other whole events. An event without Raw announces that an event longer than
	// sse.MaxEventBytes is forwarded next. at is the time when the event was read, perhaps together
	// with others. If enough is true, the rest of this source is dropped and its exchange closed.
	Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
	// Held is called when the relay stops reading an event stream because the client has not taken
	// the earlier bytes, and when the relay goes on. Without Loops it is called for each write,
	// however short.
	Held(held bool, at time.Time)
	// Body is called for each piece of a body that is not an event stream, before it is sent. A
	// body of up to 256 KiB is one piece, with whole set.
	Body(piece []byte, whole bool)
	// End is called once for each event stream that has ended, and for each failure of Next. o and
	// err describe the end: Complete, Enough, or a failure and its cause. End is not called if the
	// client has left or does not read, if the Loops are closed, or if the Follower has panicked. A
	// canceled exchange (ErrCanceled) counts as a client that has left. End appends to out the last
	// bytes for the client: withheld events, or events that report the failure. If more is true,
	// another source follows. If more is false, the response ends as HTTP demands. After a failure
	// without any appended bytes the connection is cut, so that the client cannot take the response
	// for complete.
	End(out []byte, o Outcome, err error) (rest []byte, more bool)
	// Next returns the next source after End has asked for more. The source must be an event stream
	// with a status below 300. The source's head must have been read, and its first event awaited.
	// The connection of the previous source is back in its pool, or closed. Next runs on a
	// goroutine and may block. An error means that there is no next source; End gets this error,
	// with UpstreamFailed. The relay owns the exchange and closes it. After ReplyOptions.Parked,
	// the client's request is no longer available.
	Next() (*Exchange, error)
	// Left is called at most once, while Next runs or has just returned, if the client has left or
	// does not read, or if the Loops are closed. Next should then return. Only Done follows.
	Left()
	// Done is called exactly once, after all exchanges have been closed. err is the cause of an
	// outcome other than Complete. sent counts the bytes of the body that were written to the
	// client's connection, without chunks' size lines.
	Done(o Outcome, sent int64, err error)
}

// OneSource is embedded by followers that never ask for a second source, and to which a client's
// pace means nothing.
type OneSource struct{}

// Held does nothing.
func (OneSource) Held(bool, time.Time) {}

// Next is never called.
func (OneSource) Next() (*Exchange, error) { return nil, errOneSource }

// Left is never called.
func (OneSource) Left() {}

var (
	errOneSource = errors.New("response has one source")
	// errNoEvents is the error for a source that Next must not return.
	errNoEvents = errors.New("next source is no event stream")
	// errFollower ends a stream whose Follower has panicked.
	errFollower = errors.New("following the stream failed")
)

// nextSource calls Next and checks the source that it returns.
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
