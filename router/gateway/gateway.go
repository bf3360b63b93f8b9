// Package gateway is the router's OpenAI-compatible port. The gateway reads requests and relays the
// answers. The gateway answers health, model lists and errors itself and hands inference to
// router/plan. Each of the gateway's errors has the envelope of the client's API.
package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/limits/shared"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/tally"
	"github.com/cognitora/dataplane/router/traces"
	"github.com/cognitora/dataplane/router/trust"
)

// Limits bound the memory and time that clients can take up. All limits are positive.
type Limits struct {
	MaxBody        int // bytes
	MaxBodyTotal   int // bytes of all request bodies in memory; no less than MaxBody
	MaxHeader      int // bytes
	MaxConnections int
	MaxStreams     int
	HeaderTimeout  time.Duration // to send a request head
	BodyTimeout    time.Duration // to send a request body
	KeepAlive      time.Duration // an idle connection is closed after this time
	SlowReader     time.Duration // a client that reads nothing is dropped after this time
}

// Parts are the things that a Gateway works with. A Gateway owns none of its Parts.
type Parts struct {
	Plans   *plan.Planner
	Scans   *scan.Memo // nil: every body is scanned from its beginning
	Fleet   *fleet.Fleet
	Metrics *metrics.Router
	Watcher *relay.Watcher
	Loops   *relay.Loops      // nil: streams stay with their goroutines
	Access  *accesslog.Logger // nil: no access log
	Audit   *audit.Log        // nil: no audit log
	Traces  *traces.Tracer    // nil: no traces
	Auth    *auth.Door        // nil: everybody may ask
	Salts   *isolation.Salts  // nil: clients share cached prompts
	Limits  *limits.Book      // of tenants and models; nil: none
	Shared  *shared.Limiter   // of several routers; nil: this router counts alone
	Tally   *tally.Tally      // of what clients use; nil: nobody adds it up
	Logger  *slog.Logger
	Admin   string // address of the admin port, for messages
	// Thresholds answers /busy_threshold, for clients with the scope route.pin; nil: the path is
	// unknown. The answer becomes JSON.
	Thresholds func(ctx *fasthttp.RequestCtx, who *trust.Principal) (answer any, err *apierror.Error)
}

// Gateway serves the clients of the port.
type Gateway struct {
	plans   *plan.Planner
	scans   *scan.Memo
	fleet   *fleet.Fleet
	metrics *metrics.Router
	watcher *relay.Watcher
	parking relay.Parking
	parker  parker
	litter  litter

	// Who may come in, what tells clients apart, and how much each may take.
	auth   *auth.Door       // nil: everybody may ask
	salts  *isolation.Salts // nil: clients share cached prompts
	book   *limits.Book
	shared *shared.Limiter // nil: this router counts alone

	// Places where requests are recorded.
	access *accesslog.Logger // nil: no access log
	audit  *audit.Log        // nil: no audit log
	traces *traces.Tracer    // nil: no traces
	tally  *tally.Tally      // nil: use is not added up

	// For operators.
	thresholds func(*fasthttp.RequestCtx, *trust.Principal) (any, *apierror.Error) // nil: no /busy_threshold
	admin      string                                                              // address of the admin port
	log        *slog.Logger

	limits        Limits
	open, streams counter // client connections; running requests for a stream
	bodies        intake.Bodies
	live          liveCalls

	forwardAuth bool
	server      *fasthttp.Server
	started     time.Time
	port        port
}

// port is the state of the port that the gateway serves.
type port struct {
	mu       sync.Mutex
	listener net.Listener // nil: not serving yet
	closed   bool         // Shutdown has begun

	draining atomic.Bool   // each answer closes its connection
	retired  atomic.Bool   // another process serves this address now
	over     atomic.Bool   // the time to finish requests is over
	empty    chan struct{} // signalled when the last connection closes, once over is set
}

// New makes a gateway. With forwardAuth the gateway passes the client's Authorization to backends
// without a key of their own.
func New(p Parts, l Limits, forwardAuth bool) *Gateway {
	g := &Gateway{
		plans: p.Plans, scans: p.Scans, fleet: p.Fleet, metrics: p.Metrics, watcher: p.Watcher,
		auth: p.Auth, salts: p.Salts, book: cmp.Or(p.Limits, new(limits.Book)), shared: p.Shared,
		access: p.Access, audit: p.Audit, traces: p.Traces, tally: p.Tally,
		thresholds: p.Thresholds, admin: p.Admin, log: p.Logger, limits: l,
		forwardAuth: forwardAuth, started: time.Now(), port: port{empty: make(chan struct{}, 1)},
	}
	g.parking = relay.Parking{Loops: p.Loops, Serve: g.serveAgain, KeepAlive: l.KeepAlive}
	g.parker.Parking, g.parker.litter, g.parker.after = &g.parking, &g.litter, parkAfter
	g.bodies.Limit, g.bodies.Longest, g.bodies.Buffer, g.bodies.Time = int64(l.MaxBodyTotal), int64(l.MaxBody),
		l.MaxHeader, l.BodyTimeout
	intake.BoundBuffers()
	g.server = &fasthttp.Server{
		SecureErrorLogMessage:         true, // logs never hold the bytes of a request
		Handler:                       g.handle,
		ErrorHandler:                  g.unreadable,
		HeaderReceived:                g.headRead,
		ExpectHandler:                 g.expected,
		ConnState:                     g.track,
		Name:                          "cognitora",
		Concurrency:                   2*l.MaxConnections + 64, // the listener's limit takes effect first
		ReadBufferSize:                l.MaxHeader,
		ReadTimeout:                   l.HeaderTimeout,
		WriteTimeout:                  l.SlowReader,
		IdleTimeout:                   l.KeepAlive,
		MaxRequestBodySize:            l.MaxBody,
		MaxIdleWorkerDuration:         10 * time.Second,
		NoDefaultContentType:          true,
		DisableHeaderNamesNormalizing: false,
		StreamRequestBody:             false,
		DisablePreParseMultipartForm:  true,
		Logger:                        serverLog{p.Logger},
	}
	return g
}

// serverLog logs fasthttp's messages about client connections at debug level.
type serverLog struct{ log *slog.Logger }

// Printf implements fasthttp.Logger.
func (s serverLog) Printf(format string, args ...any) {
	s.log.Debug("client connection", "event", fmt.Sprintf(format, args...))
}

// Serve accepts connections from l until Shutdown, or until l is closed. With t the connections
// speak TLS. After Shutdown Serve closes l and returns nil.
func (g *Gateway) Serve(l net.Listener, t *tls.Config) error {
	g.port.mu.Lock()
	closed := g.port.closed
	g.port.listener = l
	g.port.mu.Unlock()
	if closed {
		return ignoreClosed(l.Close())
	}
	bounded := &listener{
		Listener: g.watcher.Listen(l, relay.ListenOptions{SendBufferBytes: sendBufferBytes}),
		open:     &g.open, limit: g.limits.MaxConnections, tls: t != nil,
		full: g.metrics.ClientCut.WithLabelValues("too_many").Inc, over: &g.port.over, empty: g.port.empty,
	}
	stop := make(chan struct{})
	var tidying sync.WaitGroup
	tidying.Go(func() { g.litter.tidy(stop) })
	defer tidying.Wait()
	defer close(stop)
	return g.server.Serve(&front{bounded, t, &g.bodies, &g.parker})
}

// sendBufferBytes bounds the kernel's buffer for one client that does not read.
const sendBufferBytes = 256 << 10

// StartDrain makes every further answer close its connection, so that clients move to other
// routers.
func (g *Gateway) StartDrain() { g.port.draining.Store(true) }

// Retire is StartDrain for a gateway whose address another process serves. Retire stops accepting
// at once. Retire does not make /health fail.
func (g *Gateway) Retire() error {
	g.port.retired.Store(true)
	g.StartDrain()
	return g.stopAccepting()
}

// Shutdown stops accepting and waits for running requests until ctx ends. Then Shutdown ends the
// requests; a stream gets an error event. Shutdown may be called before Serve.
func (g *Gateway) Shutdown(ctx context.Context) error {
	defer g.bodies.Close()
	if err := g.stopAccepting(); err != nil {
		return err
	}
	g.StartDrain()
	g.parker.end()
	if g.parking.Loops != nil {
		g.parking.Loops.Drain()
	}
	err := ignoreClosed(g.server.ShutdownWithContext(ctx))
	if err == nil && g.parking.Loops != nil {
		err = g.parking.Loops.Wait(ctx)
	}
	if err == nil {
		return nil
	}
	g.port.over.Store(true)
	g.live.each(func(c *call) { c.request.Life.Shutdown() })
	end := time.NewTimer(lastWords)
	defer end.Stop()
	for g.open.n.Load() > 0 {
		select {
		case <-g.port.empty:
		case <-end.C:
			return err
		}
	}
	return err
}

// EndRevoked ends the running requests of revoked principals. A stream gets an error event.
func (g *Gateway) EndRevoked() {
	g.live.each(func(c *call) {
		if c.request.Who.Revoked() {
			c.request.Life.Revoke()
		}
	})
}

// stopAccepting closes the listener, because a server that does not serve yet would leave the
// listener open.
func (g *Gateway) stopAccepting() error {
	g.port.mu.Lock()
	defer g.port.mu.Unlock()
	g.port.closed = true
	if g.port.listener == nil {
		return nil
	}
	return ignoreClosed(g.port.listener.Close())
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// lastWords is the time that ended requests have to send their error.
const lastWords = time.Second

// Connections returns the number of open client connections.
func (g *Gateway) Connections() int { return int(g.open.n.Load()) }

// Streams returns the number of running requests for a stream.
func (g *Gateway) Streams() int { return int(g.streams.n.Load()) }

// BodyBytes returns the bytes of request bodies that count towards Limits.MaxBodyTotal.
func (g *Gateway) BodyBytes() int64 { return g.bodies.Held() }

func (g *Gateway) handle(ctx *fasthttp.RequestCtx) {
	a := arrivingAt(ctx)
	began, fault, who := a.began, a.fault, a.who
	a.next()
	g.nameRequest(ctx)
	if g.port.draining.Load() {
		ctx.SetConnectionClose()
	}
	r, api, rest := find(ctx.Method(), ctx.Path())
	name := api.String()
	switch {
	case fault != nil && refusesIdentity(fault):
		g.refuse(ctx, api, fault, nil)
	case fault != nil:
		g.malformed(ctx, api, fault)
	case !g.bodies.Whole(&a.Body, len(ctx.Request.Body())):
		g.fail(ctx, api, errBodies)
	case r == routeUnknown, r == routePass && !r.takes(ctx.Method()), r == routeThresholds && g.thresholds == nil:
		g.noPath(ctx, api)
	case !r.takes(ctx.Method()):
		g.wrongMethod(ctx, r, api)
	case r != routeHealth && !who.Scopes.Has(r.scope()):
		g.refuse(ctx, api, auth.Lacks(r.scope(), who), who)
	case r == routeInfer, r == routePass:
		g.litter.body(len(ctx.Request.Body()))
		g.infer(ctx, api, who)
		return
	case r == routeStored:
		g.storedResponse(ctx, rest, who)
		return
	case r == routeHealth:
		name = "health"
		g.health(ctx)
	case r == routeModels:
		name = "models"
		g.listModels(ctx, who)
	case r == routeModel:
		name = "models"
		g.getModel(ctx, rest, who)
	case r == routeThresholds:
		name = "busy_threshold"
		g.answerThresholds(ctx, who)
	}
	g.bodies.Give(&a.Body)
	g.note(ctx, stringOf(ctx.Method()), name, began, who)
}

// nameRequest gives the request the id of all its log lines: the client's id if it is valid, or a
// new one.
func (g *Gateway) nameRequest(ctx *fasthttp.RequestCtx) {
	id := ctx.Request.Header.Peek("x-request-id")
	if len(id) == 0 || len(id) > 128 || bytes.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		var b [16]byte
		const digits = "0123456789abcdef"
		for i, v := 0, rand.Uint64(); i < len(b); i, v = i+1, v>>4 {
			b[i] = digits[v&15]
		}
		ctx.Request.Header.SetBytesV("X-Request-Id", b[:])
		id = b[:]
	}
	ctx.Response.Header.SetBytesV("X-Request-Id", id)
}

// health answers load balancers. health says 200 while requests would be answered.
func (g *Gateway) health(ctx *fasthttp.RequestCtx) {
	ok, detail := g.Ready(time.Now())
	ctx.SetContentType("application/json")
	b := []byte(`{"status":"ok"`)
	if !ok {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		b = []byte(`{"status":"unavailable"`)
	}
	if detail != "" {
		b = jsonscan.AppendQuoted(append(b, `,"detail":`...), []byte(detail))
	}
	ctx.SetBody(append(b, '}'))
}

// answerThresholds answers a request to /busy_threshold.
func (g *Gateway) answerThresholds(ctx *fasthttp.RequestCtx, who *trust.Principal) {
	answer, fail := g.thresholds(ctx, who)
	if fail != nil {
		g.fail(ctx, scan.Other, fail)
		return
	}
	doc, err := json.Marshal(answer)
	if err != nil {
		g.bug(err)
		g.fail(ctx, scan.Other, errBug)
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(doc)
}

// Ready says whether a request would be answered now, and if not, why.
func (g *Gateway) Ready(now time.Time) (ok bool, detail string) {
	if g.port.draining.Load() && !g.port.retired.Load() {
		return false, "draining"
	}
	ok, who := g.auth.Ready()
	if !ok {
		return false, who
	}
	ok, detail = g.fleet.Load().Ready(now)
	if detail != "" && who != "" {
		who += "; "
	}
	return ok, who + detail
}
