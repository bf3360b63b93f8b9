package front

import (
	"encoding/json"
	"errors"
	"net"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
)

// statusClientLeft is the counted status of a request whose client has left.
const statusClientLeft = 499

// handle answers one request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	var p *passage // nil unless the request is passed on
	defer func() {
		if bug := recover(); bug != nil {
			s.survive(ctx, p, bug)
		}
		if p == nil {
			clientOf(ctx).give()
		}
	}()
	room := s.bodyRead(ctx)
	switch path := ctx.Path(); {
	case intake.TwiceFramed(&ctx.Request.Header):
		s.reject(ctx, errFraming)
		ctx.SetConnectionClose()
	case !room:
		s.reject(ctx, errBodies)
	case string(path) == "/health":
		s.health(ctx)
	case changesAdapters(path):
		s.changeAdapter(ctx)
	case !passes(path) && !(s.o.ServerInfo && string(path) == "/server_info"):
		s.reject(ctx, errNoPath)
	case s.inFlight.Add(1) > int64(s.o.Limits.MaxRequests):
		s.release()
		s.reject(ctx, errTooMany)
	default:
		p = s.begin()
		s.forward(ctx, p)
	}
}

// survive answers a request whose handling has panicked, so that other requests and the engine go
// on.
func (s *Server) survive(ctx *fasthttp.RequestCtx, p *passage, bug any) {
	s.noteBug(bug)
	defer func() {
		if recover() != nil { // the bug is in the code that ends a request
			ctx.SetConnectionClose()
		}
	}()
	if p == nil || p.ended {
		s.reject(ctx, errBug)
		return
	}
	if p.exchange != nil {
		p.exchange.Close()
	}
	p.fail(ctx, errPanic)
}

// errPanic is the error of a passage that panicked.
var errPanic = errors.New("panic")

func (s *Server) noteBug(bug any) {
	s.o.Logger.Error("request handling failed, this is a bug", "panic", bug, "stack", string(debug.Stack()))
	s.o.Counters.Panics.Inc()
}

// health answers whether the node takes requests, by the state of agent and engine.
func (s *Server) health(ctx *fasthttp.RequestCtx) {
	ctx.SetContentType("application/json")
	reason := s.o.Health()
	if reason == "" {
		ctx.SetBodyString(`{"status":"ok"}`)
		return
	}
	ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	body, _ := json.Marshal(map[string]string{"status": "unavailable", "reason": reason}) // strings always encode
	ctx.SetBody(body)
}

func (s *Server) reject(ctx *fasthttp.RequestCtx, f failure) {
	f.write(ctx)
	s.countRejected(f)
}

func (s *Server) countRejected(f failure) {
	s.o.Counters.Rejected.WithLabelValues(f.code).Inc()
	s.count(f.status)
}

// malformed answers a request that fasthttp could not parse.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	if relay.RefusePlain(ctx.Conn(), err, errNoTLS.status, errNoTLS.envelope(false)) {
		s.countRejected(errNoTLS)
		return
	}
	s.o.Audit.Stranger("serving", ctx.RemoteAddr(), err)
	var network net.Error
	f := errMangled
	refused := clientOf(ctx).refused
	switch {
	case refused != nil:
		f = *refused
	case errors.As(err, new(*fasthttp.ErrSmallBuffer)):
		f = errHeader
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		f = errBody
	case errors.As(err, &network) && network.Timeout():
		f = errSlow
	}
	s.reject(ctx, f)
	ctx.SetConnectionClose()
	if f != errSlow {
		relay.Linger(ctx.Conn())
	}
}

func (s *Server) count(status int) {
	s.o.Counters.Requests.WithLabelValues(strconv.Itoa(status)).Inc()
}

// release ends one request in flight.
func (s *Server) release() {
	if s.inFlight.Add(-1) == 0 {
		await.Wake(s.idle)
	}
}

// passage is one request on its way through the front. A passage receives the events of its
// response, and is reused after the response ends.
type passage struct {
	relay.OneSource
	s       *Server
	abort   relay.Abort
	gone    func() // abort.Cancel, bound once
	request relay.Request
	header  []byte
	body    [1][]byte
	started time.Time
	status  int

	stop     func()          // stops watching the client
	client   *client         // its connection, which holds the body
	exchange *relay.Exchange // the exchange with the engine; nil before it begins, and once Reply owns it
	ended    bool
}

var passages = sync.Pool{New: func() any {
	p := &passage{}
	p.gone = p.abort.Cancel
	return p
}}

// forward passes the request to the engine. forward ends the passage exactly once: by Reply's Done,
// or by fail.
func (s *Server) forward(ctx *fasthttp.RequestCtx, p *passage) {
	p.client = clientOf(ctx)
	p.stop = s.watcher.Watch(ctx.Conn(), p.gone)
	e, err := p.send(ctx)
	if err == nil {
		p.exchange, p.status = e, e.Status()
		ctx.SetStatusCode(p.status)
		relay.CopyHeaders(&ctx.Response.Header, e)
		err = relay.Reply(ctx, e, relay.ReplyOptions{SlowReader: s.o.Limits.SlowReader, Follower: p, Stop: p.stop})
		if err == nil {
			return
		}
		p.exchange = nil
		e.Close()
	}
	p.fail(ctx, err)
}

// send returns the exchange once the engine has sent the head of its answer.
func (p *passage) send(ctx *fasthttp.RequestCtx) (*relay.Exchange, error) {
	limits := &p.s.o.Limits
	end := relay.Deadline(&ctx.Request.Header, p.started, p.started.Add(limits.Total))
	p.header = relay.AppendForwardHeaders(p.header[:0], &ctx.Request.Header)
	p.header = relay.AppendRank(p.header, &ctx.Request.Header)
	p.body[0] = ctx.Request.Body()
	p.request = relay.Request{
		Method: string(ctx.Method()), Path: string(ctx.URI().RequestURI()),
		Header: p.header, Body: p.body[:], Abort: &p.abort, Once: p.s.o.EngineOnce,
	}
	if p.s.o.ForwardAuth {
		p.request.ForwardAuthorization = ctx.Request.Header.Peek("Authorization")
	}
	if !time.Now().Before(end) { // the engine's work would be for nobody
		return nil, &relay.Error{Phase: relay.PhaseWrite, Kind: relay.KindTimeout, Err: relay.ErrDeadline}
	}
	e, err := p.s.pool.Send(&p.request, end)
	if err != nil {
		return nil, err
	}
	if err := e.ReadHead(end); err != nil {
		e.Close()
		return nil, err
	}
	e.SetReadDeadline(end)
	e.SetIdleTimeout(limits.Idle)
	return e, nil
}

// fail answers a request whose response has not begun.
func (p *passage) fail(ctx *fasthttp.RequestCtx, err error) {
	if p.stop != nil {
		p.stop()
	}
	if p.abort.Canceled() {
		relay.HangUp(ctx)
		p.end(relay.ClientGone, statusClientLeft, err)
		return
	}
	f := failureOf(err)
	f.write(ctx)
	p.end(relay.UpstreamFailed, f.status, err)
}

// Event forwards every event unchanged.
func (p *passage) Event(e sse.Event, out []byte, _ time.Time) (rest []byte, enough bool) {
	return append(out, e.Raw...), false
}

// Body forwards everything unchanged.
func (p *passage) Body([]byte, bool) {}

// End adds nothing, so that the connection of a failed stream is cut. The router then notices, and
// tells its client in the client's own protocol.
func (p *passage) End(out []byte, _ relay.Outcome, _ error) (rest []byte, more bool) {
	return out, false
}

// Done ends the passage of a request whose response has begun.
func (p *passage) Done(o relay.Outcome, _ int64, err error) {
	s := p.s
	defer func() {
		if bug := recover(); bug != nil {
			s.noteBug(bug)
		}
	}()
	p.end(o, p.status, err)
}

// end counts the request and releases the passage for reuse.
func (p *passage) end(o relay.Outcome, status int, err error) {
	s, c := p.s, &p.s.o.Counters
	p.ended = true
	defer s.release()
	s.forget(p)
	if p.client != nil {
		p.client.give()
	}
	var failed *relay.Error
	switch {
	case o == relay.ClientGone:
		c.ClientLeft.Inc()
	case o == relay.SlowReader:
		c.Rejected.WithLabelValues("slow_reader").Inc()
	case errors.As(err, &failed):
		c.Failures.WithLabelValues(failed.Phase.String(), failed.Kind.String()).Inc()
	}
	c.Seconds.Observe(time.Since(p.started).Seconds())
	s.count(status)
	p.s, p.stop, p.client, p.exchange, p.body[0], p.request = nil, nil, nil, nil, nil, relay.Request{}
	passages.Put(p)
}
