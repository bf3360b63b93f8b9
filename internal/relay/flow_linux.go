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

// flow is a client's connection in a loop. A flow has a stream that is being sent, or waits for its
// next request. From start on only the loop's thread uses a flow, unless a field says otherwise.
type flow struct {
	l        *loop
	parking  *Parking
	step     flowStep
	serial   atomic.Uint64 // number of the present or last exchange; 0: there was none
	ticket   ticket        // names the flow's slot in the loop
	timer    timer
	turn     turn
	s        *relayedReply // nil: between requests
	client   receiver
	upstream sender
	unsent   unsent
	opening  opening
	parting  parting

	idleSince time.Time        // start of the wait for the next request
	handOver  func(c net.Conn) // onHandOver, bound once
}

// flowStep is the state of a flow.
type flowStep uint8

const (
	arriving  flowStep = iota // not in the loop yet
	relaying                  // a source is being read, or the rest of the stream is being sent
	changing                  // the stream waits for its next source
	leaving                   // the stream has ended, but Follower.Next is still running
	settling                  // the stream has ended, and its resources are being released
	idle                      // the connection waits for its next request
	dismissed                 // no longer in the loop
)

// turn tells whether a flow is queued in loop.again, because more can be read at once.
type turn uint8

const (
	waits turn = iota // the flow waits for an event
	queued
)

// receiver is a flow's client.
type receiver struct {
	top   parkable    // the connection as the server sees it
	conn  *clientConn // the connection with the socket
	fd    int
	state clientState
}

// clientState is the client's action since the loop last looked.
type clientState uint8

const (
	clientQuiet clientState = iota
	clientAsks              // the client has sent bytes of the next request
	clientLeft              // the client has shut down or reset the connection
)

// sender is a flow's upstream.
type sender struct {
	fd     int // -1: none is watched; 0: before start
	supply supply
	last   time.Time // when bytes were last read, or reading became possible again
}

// supply tells whether the upstream's socket may have bytes.
type supply uint8

const (
	dry     supply = iota // nothing until the next event
	flowing               // perhaps bytes
	final                 // perhaps bytes, and then the end: the upstream has shut down
)

// unsent holds the bytes that the client's socket has not taken.
type unsent struct {
	bytes []byte
	sent  int // how many of bytes were sent
	since time.Time
}

// opening is used only until fasthttp has handed over the connection.
type opening struct {
	ctx    *fasthttp.RequestCtx
	detach func() // ReplyOptions.Parked
}

// parting is the fate of the client's connection after the stream.
type parting uint8

const (
	stays  parting = iota // the connection waits for the next request
	closes                // the connection is closed properly
	resets                // the connection is reset, and the kernel drops bytes that the client has not read
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

// recycle resets f for reuse. recycle is called at the end of a turn, because code of the turn may
// still use f.
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

// isRead reports whether f reads a source.
func (f *flow) isRead() bool { return f.step == relaying && f.s.phase == reading }

// interrupt tells the loop that the exchange has been canceled. interrupt is called by the
// goroutine that cancels.
func (f *flow) interrupt(serial uint64) {
	f.l.post(message{kind: msgInterrupt, flow: f, serial: serial})
}

// start takes over a flow that onHandOver or Park has prepared.
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
		f.giveUp(UpstreamFailed, newError(PhaseBody, err)) // no further event would be noticed
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

// read begins to read the stream's source, if there is one.
func (f *flow) read() {
	if e := f.s.source.e; f.isRead() {
		f.upstream.supply, f.upstream.last = flowing, f.l.now
		if f.blocked() {
			f.s.hold(true, f.l.now)
		}
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

// pump relays bytes of the upstream, as many as this turn allows.
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

// relay does one read from the upstream, and one write of the result.
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

// next returns the available bytes of the body. The bytes may be empty if only framing has come. ok
// is false if nothing has come.
func (f *flow) next() (body []byte, ok bool) {
	e, space := f.s.source.e, f.l.buffers.in
	if n := e.held; n > 0 { // bytes read before the loop had the exchange
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

// receive puts wire bytes of the body at the front of p. receive returns 0 and no error if none are
// available.
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
		u.supply = dry // later bytes cause another event
	}
	if err == errNotNow {
		u.supply, err = dry, nil
	}
	if n > 0 {
		err = nil // the next read returns it again
	}
	return n, err
}

// frame closes the chunk that began at mark. After the last source, frame also ends the response.
func (f *flow) frame(out []byte, mark int) []byte {
	f.s.sent += int64(len(out) - mark - chunkRoom)
	if out = closeChunk(out, mark); f.s.phase == ended {
		out = append(out, lastChunk...)
	}
	return out
}

// failSource ends the source for a reason that is not in the bytes read, or reports that there is
// no next source.
func (f *flow) failSource(err error) {
	s := f.s
	out, mark := openChunk(nil)
	if s.phase == awaiting {
		out = s.noSource(out, err)
	} else {
		out = s.finish(out, err)
	}
	if s.outcome == ClientGone { // no client is left to take the rest
		f.unsent.bytes, f.unsent.sent = f.unsent.bytes[:0], 0
	}
	f.send(f.frame(out, mark))
}

// interrupted handles the cancellation of the exchange.
func (f *flow) interrupted() {
	if f.isRead() {
		f.failSource(f.s.source.e.wrap(PhaseBody, ErrCanceled))
	}
}

// send writes p, and keeps the bytes that the client's socket does not take. Bytes kept earlier go
// first.
func (f *flow) send(p []byte) {
	if f.blocked() {
		f.unsent.bytes = append(f.unsent.bytes, p...)
		f.arm() // bytes that were sent may have changed the deadline
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
		f.s.hold(true, f.l.now)
		f.arm()
	}
	f.settle()
}

// keep stores unsent bytes.
func (f *flow) keep(p []byte, now time.Time) {
	f.unsent = unsent{bytes: append(f.unsent.bytes[:0], p...), since: now}
}

// flush writes the unsent bytes.
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
	f.s.hold(false, f.l.now)
	f.settle()
}

// settle continues after the end of a source. settle asks for the next source, or ends the stream
// once all bytes are sent.
func (f *flow) settle() {
	switch {
	case f.step != relaying || f.s.phase == reading:
	case f.s.phase == awaiting:
		f.change()
	case f.blocked():
		if f.s.source.e != nil { // the source need not wait for a slow client
			f.unlink()
			f.s.closeParked()
		}
	default:
		f.over()
	}
}

// giveUp ends the stream immediately, because of this side or the client. If Next is running, the
// flow stays until Next has returned.
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

// due returns the next deadline, and the outcome if it passes. The zero time means no deadline.
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

// arm sets the timer to the next deadline, unless the timer is already set to an earlier time. A
// deadline that moves later needs no call of arm.
func (f *flow) arm() {
	at, _ := f.due()
	if at.IsZero() {
		return
	}
	if tick := f.l.tick(at); !f.timer.set() || tick < f.timer.tick {
		f.l.timers.set(&f.timer, tick)
	}
}
