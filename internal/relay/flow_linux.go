package relay

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// flow is a client's connection in a loop: with the stream that it is sent, or
// waiting for its next request. Unless said otherwise the loop's thread uses
// it, from start on.
type flow struct {
	l        *loop
	parking  *Parking
	step     flowStep
	serial   atomic.Uint64 // of the exchange that is read, or was read last; 0: none was
	ticket   ticket        // its place in the loop
	timer    timer
	turn     turn
	s        *relayedReply // nil: between requests
	client   receiver
	upstream sender
	unsent   unsent
	opening  opening
	parting  parting

	idleSince time.Time        // between requests
	handOver  func(c net.Conn) // onHandOver, bound once
}

// flowStep says where a flow is.
type flowStep uint8

const (
	arriving  flowStep = iota // it is not the loop's yet
	relaying                  // its stream is read, or what is left of it is sent
	changing                  // its stream's next source is on its way
	leaving                   // so it is, but the stream is over
	settling                  // the stream is over, and its end under way
	idle                      // it waits for the next request
	dismissed                 // it is not the loop's any more
)

// turn says whether a flow has a place in loop.again.
type turn uint8

const (
	waits turn = iota // for an event
	queued
)

// receiver is a flow's client.
type receiver struct {
	top   parkable    // the connection as the server knows it
	conn  *clientConn // the one with the socket
	fd    int
	state clientState
}

// clientState says what has been noticed of a client.
type clientState uint8

const (
	clientQuiet clientState = iota
	clientAsks              // it has sent something: the next request
	clientLeft              // it has shut down or reset the connection
)

// sender is a flow's upstream.
type sender struct {
	fd     int // -1: none is watched; 0 before start
	supply supply
	last   time.Time // when something was read, or reading could go on
}

// supply says what an upstream's socket may have.
type supply uint8

const (
	dry     supply = iota // nothing until the next event
	flowing               // perhaps something
	final                 // perhaps something, and then its end: the upstream has sent all
)

// unsent holds the bytes that the client's socket has not taken.
type unsent struct {
	bytes []byte
	sent  int // of bytes
	since time.Time
}

// opening is needed until the connection has been handed over.
type opening struct {
	ctx    *fasthttp.RequestCtx
	detach func() // ReplyOptions.Parked
}

// parting says what becomes of the client's connection after the stream.
type parting uint8

const (
	stays  parting = iota // for the next request
	closes                // properly
	resets                // the kernel forgets what the client has not read
)

var flows sync.Pool

func newFlow() *flow {
	f, ok := flows.Get().(*flow)
	if !ok {
		f = new(flow)
		f.handOver, f.timer.flow = f.onHandOver, f
	}
	return f
}

// recycle is called when a turn ends: what has ended in it may still be looked at.
func (f *flow) recycle() {
	kept := f.unsent.bytes[:0]
	if cap(kept) > keptEventBytes {
		kept = nil
	}
	*f = flow{handOver: f.handOver, timer: timer{flow: f}, unsent: unsent{bytes: kept}}
	flows.Put(f)
}

func (f *flow) blocked() bool { return f.unsent.sent < len(f.unsent.bytes) }

// isHere reports whether the loop has f.
func (f *flow) isHere() bool { return f.step != arriving && f.step != dismissed }

// isRead reports whether bytes of a source are wanted.
func (f *flow) isRead() bool { return f.step == relaying && f.s.phase == reading }

// interrupt is called by whoever cancels the exchange.
func (f *flow) interrupt(serial uint64) {
	f.l.post(message{kind: msgInterrupt, flow: f, serial: serial})
}

// start takes over what onHandOver or Park has prepared.
func (f *flow) start() {
	l := f.l
	l.admit(f)
	if f.s == nil {
		f.startIdle()
		return
	}
	f.step, f.upstream.last = relaying, l.now
	if l.closed {
		f.giveUp(UpstreamFailed, newError(PhaseBody, errLoopsClosed))
		return
	}
	if err := l.watch(f.client.fd, f.ticket.slot<<1|1, f.ticket.generation, bothEnds|unix.EPOLLOUT); err != nil {
		f.giveUp(UpstreamFailed, newError(PhaseBody, err)) // nothing more would be heard
		return
	}
	f.read()
}

const bothEnds = unix.EPOLLIN | unix.EPOLLRDHUP

// startIdle takes over a connection without a stream.
func (f *flow) startIdle() {
	l := f.l
	f.step = idle
	if l.closed || l.loops.draining.Load() ||
		l.watch(f.client.fd, f.ticket.slot<<1|1, f.ticket.generation, bothEnds) != nil {
		f.closeIdle()
		return
	}
	f.arm()
}

// read begins to read the source that the stream has, if it has one.
func (f *flow) read() {
	if e := f.s.source.e; f.isRead() {
		f.upstream.supply, f.upstream.last = flowing, f.l.now
		var err error
		if f.upstream.fd >= 0 {
			err = f.l.watch(f.upstream.fd, f.ticket.slot<<1, f.ticket.generation, bothEnds)
		}
		switch {
		case err != nil:
			f.failSource(newError(PhaseBody, err))
		case e.isCanceled():
			f.interrupted()
		default:
			f.pump()
		}
	}
	if f.step == relaying {
		f.arm()
		f.settle()
	}
}

func (f *flow) upstreamEvent(events uint32) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.upstream.supply = final
	} else if f.upstream.supply == dry {
		f.upstream.supply = flowing
	}
	f.pump()
}

func (f *flow) clientEvent(events uint32) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.client.state = clientLeft
	} else if events&unix.EPOLLIN != 0 && f.client.state == clientQuiet {
		f.client.state = clientAsks
	}
	switch {
	case f.s == nil:
		f.wake()
	case f.step == leaving:
	case f.client.state == clientLeft && (f.s.phase == reading || f.s.phase == awaiting):
		f.giveUp(ClientGone, newError(PhaseBody, ErrCanceled))
	case f.blocked():
		f.flush()
		f.pump()
	}
}

// pump passes on what the upstream has sent, as far as it is this stream's turn.
func (f *flow) pump() {
	for turns := 0; f.isRead() && f.upstream.supply != dry && !f.blocked(); turns++ {
		if turns > 0 {
			if f.turn == waits {
				f.turn = queued
				f.l.again = append(f.l.again, f.ticket)
			}
			return
		}
		f.relay()
	}
}

// relay is one read from upstream and one write of what it makes.
func (f *flow) relay() {
	l, s := f.l, f.s
	body, ok := f.next()
	if !ok {
		return
	}
	f.upstream.last, s.now = l.now, l.now
	out, mark := openChunk(l.buffers.out[:0])
	out = f.frame(s.pass(body, out), mark)
	f.send(out)
	if l.buffers.out = out[:0]; cap(out) > keptOutBytes {
		l.buffers.out = nil
	}
}

// next returns what can be had of the body now. It may be empty where the
// framing is all that has come; ok is false where nothing has.
func (f *flow) next() (body []byte, ok bool) {
	e, space := f.s.source.e, f.l.buffers.in
	if n := e.held; n > 0 { // what has been read before the loop had the exchange
		e.held = 0
		return e.space[:n], true
	}
	if e.ended != nil {
		return nil, true
	}
	n, err := f.receive(space)
	if n == 0 && err == nil {
		return nil, false
	}
	return space[:e.push(space[:n], err)], true
}

// receive puts wire bytes of the body at the front of p; none and no error where
// there are none now.
func (f *flow) receive(p []byte) (n int, err error) {
	e, u := f.s.source.e, &f.upstream
	if len(e.rest) > 0 {
		n = copy(p, e.rest)
		e.rest = e.rest[n:]
		return n, nil
	}
	if w := e.c.wire; w != nil {
		w.dry, w.ending = false, u.supply == final
		for n < len(p) && err == nil {
			var m int
			m, err = e.c.nc.Read(p[n:])
			n += m
		}
	} else if n, err = receive(u.fd, p); err == nil && n < len(p) && u.supply != final {
		u.supply = dry // what comes from now on is another event
	}
	if err == errNotNow {
		u.supply, err = dry, nil
	}
	if n > 0 {
		err = nil // comes again
	}
	return n, err
}

// frame closes the chunk begun at mark and, with the last source, the response.
func (f *flow) frame(out []byte, mark int) []byte {
	f.s.sent += int64(len(out) - mark - chunkRoom)
	if out = closeChunk(out, mark); f.s.phase == ended {
		out = append(out, lastChunk...)
	}
	return out
}

// failSource ends the source for a reason other than what was read, or tells
// that there is none.
func (f *flow) failSource(err error) {
	s := f.s
	out, mark := openChunk(nil)
	if s.phase == awaiting {
		out = s.noSource(out, err)
	} else {
		out = s.finish(out, err)
	}
	if s.outcome == ClientGone { // nobody is there to take it
		f.unsent.bytes, f.unsent.sent = f.unsent.bytes[:0], 0
	}
	f.send(f.frame(out, mark))
}

// interrupted is told that the exchange has been canceled.
func (f *flow) interrupted() {
	if f.isRead() {
		f.failSource(f.s.source.e.wrap(PhaseBody, ErrCanceled))
	}
}

// send writes p, and keeps what the client's socket does not take. Bytes that
// were kept before go first.
func (f *flow) send(p []byte) {
	if f.blocked() {
		f.unsent.bytes = append(f.unsent.bytes, p...)
		f.arm() // what was due has been, perhaps
		f.settle()
		return
	}
	n := 0
	if len(p) > 0 {
		var err error
		if n, err = transmit(f.client.fd, p); err != nil {
			f.giveUp(clientOutcome(err), err)
			return
		}
	}
	if f.keep(p[n:], f.l.now); f.blocked() {
		f.arm()
	}
	f.settle()
}

// keep holds on to what has not been sent.
func (f *flow) keep(p []byte, now time.Time) {
	f.unsent = unsent{bytes: append(f.unsent.bytes[:0], p...), since: now}
}

// flush writes what is unsent.
func (f *flow) flush() {
	u := &f.unsent
	n, err := transmit(f.client.fd, u.bytes[u.sent:])
	if err != nil {
		f.giveUp(clientOutcome(err), err)
		return
	}
	if u.sent += n; f.blocked() {
		return
	}
	u.bytes, u.sent = u.bytes[:0], 0
	if cap(u.bytes) > keptEventBytes {
		u.bytes = nil
	}
	f.upstream.last = f.l.now
	f.settle()
}

// settle goes on from a source that has ended: to the next one, or to the end of
// the stream once everything has been sent.
func (f *flow) settle() {
	switch {
	case f.step != relaying || f.s.phase == reading:
	case f.s.phase == awaiting:
		f.change()
	case f.blocked():
		if f.s.source.e != nil { // the client may take its time
			f.unlink()
			f.s.closeParked()
		}
	default:
		f.over()
	}
}

// giveUp ends the stream at once, for a reason on this side or the client's.
// The exchange that Next brings meanwhile is waited for.
func (f *flow) giveUp(o Outcome, err error) {
	f.s.fail(o, err)
	f.s.phase = cut
	switch f.step {
	case relaying:
		f.over()
	case changing:
		f.step = leaving
		f.l.loops.guard(f.s.follower.Left)
	}
}

// fire is called when f's timer is due.
func fire(t *timer) {
	f := t.flow
	f.l.current = f
	due, what := f.due()
	switch {
	case due.IsZero():
	case due.After(f.l.now):
		f.arm()
	case f.s == nil:
		f.closeIdle()
	case what == SlowReader:
		f.giveUp(SlowReader, os.ErrDeadlineExceeded)
	case what == IdleTimeout:
		f.failSource(f.s.source.e.wrap(PhaseBody, ErrIdle))
	default:
		f.failSource(f.s.source.e.wrap(PhaseBody, ErrDeadline))
	}
}

// due is the next deadline, and how the stream ends then. The zero time is none.
func (f *flow) due() (at time.Time, o Outcome) {
	if f.s == nil {
		return f.idleSince.Add(f.parking.KeepAlive), Complete
	}
	if f.isRead() {
		e := f.s.source.e
		if at, o = e.deadline, TotalTimeout; e.idle > 0 && !f.blocked() {
			if idle := f.upstream.last.Add(e.idle); at.IsZero() || idle.Before(at) {
				at, o = idle, IdleTimeout
			}
		}
	}
	if f.blocked() && f.step != leaving {
		if slow := f.unsent.since.Add(f.s.client.slow); at.IsZero() || slow.Before(at) {
			at, o = slow, SlowReader
		}
	}
	return at, o
}

// arm sets the timer to what is due next, unless it is early enough. Deadlines
// that move away need not be told.
func (f *flow) arm() {
	at, _ := f.due()
	if at.IsZero() {
		return
	}
	if tick := f.l.tick(at); !f.timer.set() || tick < f.timer.tick {
		f.l.timers.set(&f.timer, tick)
	}
}
