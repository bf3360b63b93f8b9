package relay

import (
	"io"
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
	lending  *Lending
	top      leased               // the connection as the server knows it
	client   *clientConn          // the one with the socket
	cfd, ufd int                  // client's and upstream's sockets
	ctx      *fasthttp.RequestCtx // until it is handed over; so is detach
	detach   func()

	serial  atomic.Uint64 // of the stream, 0 without one
	started bool          // the loop has it

	slot, generation uint32
	timer            timer

	s        *stream // nil: between requests
	readable bool    // upstream may have something
	hungUp   bool    // upstream has sent all
	drained  bool    // nothing more comes from upstream
	cut      bool    // what ends the body will not be sent
	closing  bool    // the answer says that it is the last one
	left     bool    // the client has shut down or reset the connection
	asked    bool    // the client has sent something
	queued   bool    // in loop.again
	settling bool    // the stream is over, but its end is not through yet

	pending []byte // what the client's socket has not taken
	sent    int    // of pending

	lastRead  time.Time // from upstream, or when reading could go on
	blockedAt time.Time // since when something is pending
	idleSince time.Time // between requests

	handOver func(net.Conn) // onHandOver, bound once
}

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
	*f = flow{handOver: f.handOver, timer: timer{flow: f}, pending: f.pending[:0]}
	if cap(f.pending) > keptEventBytes {
		f.pending = nil
	}
	flows.Put(f)
}

func (f *flow) blocked() bool { return f.sent < len(f.pending) }

// interrupt is called by whoever cancels the exchange.
func (f *flow) interrupt(serial uint64) {
	f.l.post(message{kind: msgInterrupt, flow: f, serial: serial})
}

// start takes over what onHandOver or Rest has prepared.
func (f *flow) start() {
	l := f.l
	f.started, f.lastRead = true, l.now
	l.admit(f)
	if l.closed {
		f.abandon()
		return
	}
	if f.s == nil {
		f.startIdle()
		return
	}
	const both = unix.EPOLLIN | unix.EPOLLRDHUP
	err := l.watch(f.cfd, f.slot<<1|1, f.generation, both|unix.EPOLLOUT)
	if err == nil && !f.drained {
		err = l.watch(f.ufd, f.slot<<1, f.generation, both)
	}
	switch {
	case err != nil: // without it nothing more would be heard
		f.s.fail(UpstreamFailed, newError(PhaseBody, err))
		f.cut = true
		f.over()
		return
	case f.s.e.isCanceled():
		f.interrupted()
	default:
		f.pump()
	}
	if f.s != nil {
		f.arm()
		f.settle()
	}
}

// startIdle takes over a connection without a stream.
func (f *flow) startIdle() {
	l := f.l
	if l.loops.draining.Load() || l.watch(f.cfd, f.slot<<1|1, f.generation, unix.EPOLLIN|unix.EPOLLRDHUP) != nil {
		f.closeIdle()
		return
	}
	f.arm()
}

func (f *flow) upstreamEvent(events uint32) {
	if f.readable = true; events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.hungUp = true
	}
	f.pump()
}

func (f *flow) clientEvent(events uint32) {
	f.left = f.left || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	f.asked = f.asked || events&unix.EPOLLIN != 0
	switch {
	case f.s == nil:
		f.wake()
	case f.left && !f.drained:
		f.s.fail(ClientGone, newError(PhaseBody, ErrCanceled))
		f.over()
	case f.blocked():
		f.flush()
		f.pump()
	}
}

// pump passes on what the upstream has sent, as far as it is this stream's turn.
func (f *flow) pump() {
	for turns := 0; f.s != nil && f.readable && !f.drained && !f.blocked(); turns++ {
		if turns > 0 {
			if !f.queued {
				f.queued = true
				f.l.again = append(f.l.again, ticket{f.slot, f.generation})
			}
			return
		}
		f.relay()
	}
}

// relay is one read from upstream and one write of what it makes.
func (f *flow) relay() {
	l, e := f.l, f.s.e
	n, err := f.read(l.space)
	if n == 0 && err == nil {
		return
	}
	f.lastRead = l.now
	f.s.now = l.now
	body := l.space[:e.push(l.space[:n], err)]
	out, mark := openChunk(l.out[:0])
	if len(body) > 0 {
		out = f.s.filter.Feed(body, out, f.s.keep)
	}
	out = f.finish(out, mark)
	f.send(out)
	if l.out = out[:0]; cap(out) > keptOutBytes {
		l.out = nil
	}
}

// read puts wire bytes of the body at the front of p; none and no error where
// there are none now.
func (f *flow) read(p []byte) (n int, err error) {
	e := f.s.e
	if len(e.rest) > 0 {
		n = copy(p, e.rest)
		e.rest = e.rest[n:]
		return n, nil
	}
	if w := e.c.wire; w != nil {
		w.dry, w.ending = false, f.hungUp
		for n < len(p) && err == nil {
			var m int
			m, err = e.c.nc.Read(p[n:])
			n += m
		}
	} else if n, err = receive(f.ufd, p); err == nil && n < len(p) && !f.hungUp {
		f.readable = false // what comes from now on is another event
	}
	if err == errNotNow {
		f.readable, err = false, nil
	}
	if n > 0 {
		err = nil // comes again
	}
	return n, err
}

// finish closes the chunk and, where the upstream's body has ended, the
// response.
func (f *flow) finish(out []byte, mark int) []byte {
	s := f.s
	err := s.e.ended
	if err == nil {
		return f.closeChunk(out, mark)
	}
	if err == io.EOF {
		err = s.end()
	}
	if err != io.EOF {
		return f.fail(f.closeChunk(out, mark), err)
	}
	f.drained = true
	out = append(out, s.filter.Pending()...)
	s.filter.Reset()
	return append(f.closeChunk(out, mark), lastChunk...)
}

// closeChunk is closeChunk, and counts the chunk's data.
func (f *flow) closeChunk(out []byte, mark int) []byte {
	f.s.sent += int64(len(out) - mark - chunkRoom)
	return closeChunk(out, mark)
}

// fail ends the response by what its observer has to say, or cuts it.
func (f *flow) fail(out []byte, err error) []byte {
	s := f.s
	s.fail(upstreamOutcome(err), err)
	f.drained = true
	if s.outcome == ClientGone { // nobody is there to take it
		f.pending, f.sent = f.pending[:0], 0
	}
	tail := s.tail()
	if f.cut = len(tail) == 0; f.cut {
		return out
	}
	out, mark := openChunk(out)
	return append(f.closeChunk(append(out, tail...), mark), lastChunk...)
}

// failUpstream ends the stream for a reason other than what was read.
func (f *flow) failUpstream(err error) {
	if f.drained {
		return
	}
	f.send(f.fail(nil, err))
}

// interrupted is told that the exchange has been canceled.
func (f *flow) interrupted() {
	if e := f.s.e; e != nil {
		f.failUpstream(e.wrap(PhaseBody, ErrCanceled))
	}
}

// send writes p, and keeps what the client's socket does not take. What was
// kept before goes first.
func (f *flow) send(p []byte) {
	if f.blocked() {
		f.pending = append(f.pending, p...)
		f.arm() // what was due has been, perhaps
		f.settle()
		return
	}
	n := 0
	if len(p) > 0 {
		var err error
		if n, err = transmit(f.cfd, p); err != nil {
			f.lost(err)
			return
		}
	}
	if f.keep(p[n:]); f.blocked() {
		f.arm()
	}
	f.settle()
}

// keep holds on to what has not been sent.
func (f *flow) keep(p []byte) {
	f.pending, f.sent = append(f.pending[:0], p...), 0
	f.blockedAt = f.l.now
}

// flush writes what is pending.
func (f *flow) flush() {
	n, err := transmit(f.cfd, f.pending[f.sent:])
	if err != nil {
		f.lost(err)
		return
	}
	if f.sent += n; f.blocked() {
		return
	}
	f.pending, f.sent = f.pending[:0], 0
	if cap(f.pending) > keptEventBytes {
		f.pending = nil
	}
	f.lastRead = f.l.now
	f.settle()
}

// lost is what the failure of a write means.
func (f *flow) lost(err error) {
	f.s.fail(clientOutcome(err), err)
	f.cut = true
	f.over()
}

// settle ends the stream if nothing is left to be read or written.
func (f *flow) settle() {
	switch {
	case !f.drained:
	case f.blocked():
		if f.s.e != nil { // the client may take its time
			f.l.unwatch(f.ufd)
			f.s.closeLent()
		}
	default:
		f.over()
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
		f.s.fail(SlowReader, os.ErrDeadlineExceeded)
		f.over()
	case what == IdleTimeout:
		f.failUpstream(f.s.e.wrap(PhaseBody, ErrIdle))
	default:
		f.failUpstream(f.s.e.wrap(PhaseBody, ErrDeadline))
	}
}

// due is the next deadline, and how the stream ends then. The zero time is none.
func (f *flow) due() (at time.Time, o Outcome) {
	if f.s == nil {
		return f.idleSince.Add(f.lending.KeepAlive), Complete
	}
	e := f.s.e
	if e != nil && !f.drained {
		if at, o = e.deadline, TotalTimeout; e.idle > 0 && !f.blocked() {
			if idle := f.lastRead.Add(e.idle); at.IsZero() || idle.Before(at) {
				at, o = idle, IdleTimeout
			}
		}
	}
	if f.blocked() {
		if slow := f.blockedAt.Add(f.s.slow); at.IsZero() || slow.Before(at) {
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
