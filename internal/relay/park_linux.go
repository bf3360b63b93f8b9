package relay

import (
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// park gives the stream to a loop once fasthttp releases the connection. park returns false if the
// stream must stay with its goroutine.
func (s *relayedReply) park(ctx *fasthttp.RequestCtx, o *ReplyOptions) bool {
	e := s.source.e
	if o.Parking == nil || o.Parking.Loops == nil || !s.events || e.ended != nil ||
		ctx.IsHead() || e.Status() == 204 || e.Status() == 304 {
		return false
	}
	top, ok := ctx.Conn().(parkable)
	if !ok || ctx.IsTLS() {
		return false
	}
	client := clientConnOf(top)
	if client == nil || client.parked.reserve(client.Conn) != nil {
		return false
	}
	if e.c.parked.reserve(e.c.socket) != nil {
		client.parked.cancel()
		return false
	}
	ls := o.Parking.Loops
	f := newFlow()
	f.l, f.parking, f.s = ls.pick(), o.Parking, s
	f.client = receiver{top: top, conn: client, fd: client.parked.fd}
	f.opening = opening{ctx: ctx, detach: o.Parked}
	f.l.streams.Add(1)
	ls.busy.Add(1)
	f.keepFor(e)
	s.unwatch()
	client.handing = true
	top.hand()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(f.handOver)
	return true
}

// keepFor makes a cancel of e interrupt f. The connection of e must have been reserved.
func (f *flow) keepFor(e *Exchange) {
	serial := f.l.loops.serial.Add(1)
	f.serial.Store(serial)
	f.upstream.fd = e.c.parked.fd
	e.park(f, serial)
}

// take gives f the connection of the next source. take is called while f waits. A source that has
// been read to its end already needs no connection.
func (f *flow) take(e *Exchange) error {
	if f.upstream.fd = -1; e.ended != nil {
		return nil
	}
	if err := e.c.parked.reserve(e.c.socket); err != nil {
		return e.wrap(PhaseBody, err)
	}
	f.keepFor(e)
	e.c.parkSocket()
	return nil
}

// farPast is a deadline with which a read returns only bytes that are there already.
var farPast = time.Unix(1, 0)

// onHandOver is called by fasthttp, on a goroutine of its own, after it has released the
// connection. The head is final by then. The head is sent together with the available events.
func (f *flow) onHandOver(c net.Conn) {
	s, ctx, client := f.s, f.opening.ctx, f.client.conn
	client.ahead = readAhead(c)
	h := &ctx.Response.Header
	h.SetContentLength(-1)
	if h.ConnectionClose() {
		f.parting = closes
	}
	s.out = h.AppendBytes(s.out)
	if f.opening.detach != nil {
		f.opening.detach()
	}
	f.opening = opening{}
	client.watched.pause()
	client.parked.take(client.Conn)
	s.source.e.c.parkSocket()
	s.now = time.Now()
	f.tryGreet()
	f.l.post(message{kind: msgStart, flow: f})
}

// tryGreet calls greet. If the follower panics, the loop will cut the stream.
func (f *flow) tryGreet() {
	defer func() {
		if p := recover(); p != nil {
			f.l.loops.o.Panicked(p)
			f.s.fail(UpstreamFailed, newError(PhaseBody, errFollower))
			f.s.phase = cut
			f.unsent.bytes, f.unsent.sent = f.unsent.bytes[:0], 0
		}
	}()
	f.greet()
}

// greet writes the head, and the events that came with the upstream's head.
func (f *flow) greet() {
	s, e := f.s, f.s.source.e
	out, mark := openChunk(s.out)
	s.out = nil
	if n := e.held; n > 0 {
		e.held = 0
		out = s.pass(e.space[:n], out)
	}
	if rest := e.rest; len(rest) > 0 && s.phase == reading {
		e.rest = nil
		out = s.pass(rest[:e.push(rest, nil)], out)
	}
	out = f.frame(out, mark)
	n, err := transmit(f.client.fd, out)
	if err == nil {
		err = f.client.conn.broken
	}
	if err != nil {
		s.fail(clientOutcome(err), err)
		s.phase = cut
		n = len(out)
	}
	f.keep(out[n:], s.now)
	s.out = out[:0]
}

// readAhead returns the bytes that the server has read from c after the request.
func readAhead(c net.Conn) (ahead []byte) {
	c.SetReadDeadline(farPast)
	var b [1]byte
	for {
		n, err := c.Read(b[:])
		if n == 0 || err != nil {
			return ahead
		}
		ahead = append(ahead, b[0])
	}
}

// closeParked ends the exchange of a parked stream.
func (s *relayedReply) closeParked() {
	if s.source.e != nil {
		s.source.e.takeBack()
		s.closeUpstream()
	}
}

// unlink removes the upstream's connection from the loop, and from the reach of cancel.
func (f *flow) unlink() {
	e := f.s.source.e
	if e.clean() && f.upstream.fd >= 0 {
		f.l.unwatch(f.upstream.fd) // a connection that is not clean is closed, which ends its watch
	}
	f.upstream = sender{fd: -1}
	e.park(nil, 0)
}

// change asks for the next source. Meanwhile unsent bytes are sent, and the client is watched.
func (f *flow) change() {
	n := newErrand(bringSource, f.l.loops)
	n.stream, n.flow, n.old = f.s, f, f.s.source.e
	if n.old != nil {
		f.unlink()
		f.s.source.e = nil
	}
	f.step = changing
	f.l.errand(n)
}

// changed takes over the next source, or the error if there is none.
func (f *flow) changed(e *Exchange, err error) {
	s := f.s
	s.source.e = e
	left := f.step == leaving
	f.step = relaying
	switch {
	case left:
		f.over()
	case err == errFollower:
		f.giveUp(UpstreamFailed, newError(PhaseBody, err))
	case err != nil:
		f.failSource(err)
	default:
		s.source.begin(e, s.must)
		s.phase = reading
		f.read()
	}
}

// over ends the stream. The connection then waits for its next request, or is closed.
func (f *flow) over() {
	s, l := f.s, f.l
	if s.source.e != nil {
		f.unlink()
	}
	f.parting = f.part()
	n := newErrand(endStream, l.loops)
	n.stream, n.parting = s, f.parting
	f.s = nil
	f.serial.Store(0)
	l.streams.Add(-1)
	if f.parting == stays {
		n.l, n.ticket = l, f.ticket
		f.step, f.idleSince, f.unsent = settling, l.now, unsent{}
		f.arm()
	} else {
		n.top, n.client = f.client.top, f.client.conn
		l.dismiss(f)
	}
	l.errand(n)
}

// part returns the fate of the client's connection after the stream.
func (f *flow) part() parting {
	switch {
	case f.s.outcome == SlowReader:
		return resets
	case f.s.phase != ended, f.blocked(), f.client.state == clientLeft, f.l.closed, f.l.loops.draining.Load():
		return closes
	}
	return f.parting
}

// settled is called when the last stream's resources are released. Only then may the next request
// on the connection begin.
func (f *flow) settled() {
	if f.step = idle; len(f.client.conn.ahead) > 0 {
		f.serveAgain()
	} else {
		f.wake()
	}
}

// wake handles an event on a connection that waits for a request.
func (f *flow) wake() {
	switch {
	case f.step == settling:
	case f.client.state == clientLeft && peekSocket(uintptr(f.client.fd)) != peekBytes:
		f.closeIdle()
	case f.client.state != clientQuiet:
		f.serveAgain()
	}
}

// closeIdle closes the connection, unless it has a stream.
func (f *flow) closeIdle() {
	if f.s == nil {
		f.l.dismiss(f)
		f.client.top.Close()
	}
}

// abandon ends the stream, if there is one, and closes the connection.
func (f *flow) abandon(why error) {
	if f.s == nil {
		f.closeIdle()
		return
	}
	f.giveUp(UpstreamFailed, newError(PhaseBody, why))
}

// serveAgain returns the connection to its server.
func (f *flow) serveAgain() {
	f.l.unwatch(f.client.fd)
	n := newErrand(giveBack, f.l.loops)
	n.top, n.client, n.parking = f.client.top, f.client.conn, f.parking
	n.loops.busy.Add(1)
	f.l.dismiss(f)
	go n.do() // the server owns it from now on, and Wait waits for it
}

// Park gives c to a loop while c waits for its next request. Waiting in a loop costs neither a
// goroutine nor buffers. The Read of c calls Park instead of waiting longer. If Park returns true,
// Read must return io.EOF and not use c any more, so that the server releases it. With the first
// byte of the next request, c returns to the server (Parking.Serve). The connection is closed when
// KeepAlive has passed since idleSince.
func (ln *Parking) Park(c parkable, idleSince time.Time) bool {
	client := clientConnOf(c)
	if ln == nil || ln.Loops == nil || client == nil || client.parked.reserve(client.Conn) != nil {
		return false
	}
	f := newFlow()
	f.l, f.parking, f.idleSince = ln.Loops.pick(), ln, idleSince
	f.client = receiver{top: c, conn: client, fd: client.parked.fd}
	client.watched.pause()
	client.parked.take(client.Conn)
	c.hand()
	f.l.post(message{kind: msgStart, flow: f})
	return true
}
