package relay

import (
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// lend hands the stream to a loop once fasthttp lets go of the connection. It
// reports false where the stream has to stay with its goroutine.
func (s *stream) lend(ctx *fasthttp.RequestCtx, o *ReplyOptions) bool {
	e := s.e
	if o.Lending == nil || o.Lending.Loops == nil || !s.events || e.ended != nil || ctx.IsHead() || e.Status() == 204 || e.Status() == 304 {
		return false
	}
	top, ok := ctx.Conn().(leased)
	if !ok || ctx.IsTLS() {
		return false
	}
	client := clientConnOf(top)
	if client == nil || client.loan.reserve(client.Conn) != nil {
		return false
	}
	if e.c.loan.reserve(e.c.socket) != nil {
		client.loan.cancel()
		return false
	}
	ls := o.Lending.Loops
	f := newFlow()
	f.l, f.lending, f.top, f.client, f.s, f.ctx = ls.pick(), o.Lending, top, client, s, ctx
	f.cfd, f.ufd, f.detach = client.loan.fd, e.c.loan.fd, o.Lent
	f.l.streams.Add(1)
	ls.busy.Add(1)
	serial := ls.serial.Add(1)
	f.serial.Store(serial)
	e.lend(f, serial)
	s.unwatch()
	client.handing = true
	top.hand()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(f.handOver)
	return true
}

// farPast is a deadline with which a read returns what is there already.
var farPast = time.Unix(1, 0)

// onHandOver is called by fasthttp, on a goroutine of its own, when it has let
// go of the connection. The head has become what it is to be. It goes out
// together with the events that are there.
func (f *flow) onHandOver(c net.Conn) {
	s, e := f.s, f.s.e
	f.client.ahead = readAhead(c)
	h := &f.ctx.Response.Header
	h.SetContentLength(-1)
	f.closing = h.ConnectionClose()
	s.out = h.AppendBytes(s.out)
	if f.detach != nil {
		f.detach()
	}
	f.ctx, f.detach = nil, nil
	f.client.watched.rest()
	f.client.loan.take(f.client.Conn)
	e.c.lendOut()
	f.readable = true
	s.now = time.Now()
	f.tryGreet()
	f.l.post(message{kind: msgStart, flow: f})
}

// tryGreet leaves a stream whose observer panics to its loop, to be cut.
func (f *flow) tryGreet() {
	defer func() {
		if p := recover(); p != nil {
			f.l.loops.options.Panicked(p)
			f.s.fail(UpstreamFailed, newError(PhaseBody, errObserver))
			f.pending, f.sent = f.pending[:0], 0
			f.drained, f.cut = true, true
		}
	}()
	f.greet()
}

// greet writes the head and the events that have come with the upstream's.
func (f *flow) greet() {
	s, e := f.s, f.s.e
	out, mark := openChunk(s.out)
	s.out = nil // which is used for the tail
	if n := e.held; n > 0 {
		e.held = 0
		out = s.filter.Feed(e.space[:n], out, s.keep)
	}
	if rest := e.rest; len(rest) > 0 {
		e.rest = nil
		out = s.filter.Feed(rest[:e.push(rest, nil)], out, s.keep)
	}
	out = f.finish(out, mark)
	n, err := transmit(f.cfd, out)
	if err == nil {
		err = f.client.broken
	}
	if err != nil {
		s.fail(clientOutcome(err), err)
		f.drained, f.cut = true, true
		n = len(out)
	}
	f.pending, f.sent = append(f.pending[:0], out[n:]...), 0
	f.blockedAt = s.now
	s.out = out[:0]
}

// readAhead returns what the server has read from c beyond the request.
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

// closeLent ends the exchange of a stream that was lent.
func (s *stream) closeLent() {
	if s.e != nil {
		s.e.takeBack()
		s.closeUpstream()
	}
}

// over ends the stream. The connection waits for its next request, or is closed.
func (f *flow) over() {
	s, l := f.s, f.l
	if s.e != nil {
		if s.e.clean() {
			l.unwatch(f.ufd) // where it is not, its end is that of the descriptor
		}
		s.e.lend(nil, 0)
	}
	stays := f.drained && !f.cut && !f.blocked() && !f.closing && !f.left && !l.closed && !l.loops.draining.Load()
	n := newEnding()
	if n.s, n.loops = s, l.loops; !stays {
		n.top, n.client = f.top, f.client
	}
	f.s = nil
	f.serial.Store(0)
	l.streams.Add(-1)
	if stays {
		n.l, n.ticket, f.settling = l, ticket{f.slot, f.generation}, true
		f.idleSince, f.pending = l.now, nil
		f.arm()
	} else {
		l.dismiss(f)
	}
	if l.dead { // with mu held
		l.late = append(l.late, n.do)
	} else {
		l.loops.running.Go(n.do)
	}
}

// settled is called when what the last stream had is given back: the next
// request on the connection finds it so.
func (f *flow) settled() {
	if f.settling = false; len(f.client.ahead) > 0 {
		f.serveAgain()
	} else {
		f.wake()
	}
}

// abandon cuts the stream, if there is one, and closes the connection.
func (f *flow) abandon() {
	if f.s == nil {
		f.closeIdle()
		return
	}
	f.s.fail(UpstreamFailed, newError(PhaseBody, errLoopsClosed))
	f.cut = true
	f.over()
}

// wake is called when something happens on a connection that waits for a request.
func (f *flow) wake() {
	if f.settling {
		return
	}
	if f.left && peekSocket(uintptr(f.cfd)) != peekBytes {
		f.closeIdle()
	} else if f.left || f.asked {
		f.serveAgain()
	}
}

// closeIdle closes the connection unless it is being sent something.
func (f *flow) closeIdle() {
	if f.s == nil {
		f.l.dismiss(f)
		f.top.Close()
	}
}

// serveAgain gives the connection back to its server.
func (f *flow) serveAgain() {
	f.l.unwatch(f.cfd)
	n := newEnding()
	n.loops, n.top, n.client, n.lending = f.l.loops, f.top, f.client, f.lending
	n.loops.busy.Add(1)
	f.l.dismiss(f)
	go n.do() // the server's from now on, which Wait waits for
}
