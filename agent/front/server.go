// Package front is the agent's authenticated HTTP server. The front passes inference requests to
// the engine and streams the answers back as they come.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/internal/relay"
)

const (
	sendBufferBytes = 256 << 10 // kernel memory for a client that does not read
	enginePoolIdle  = 4 * time.Second
	complainEvery   = 10 * time.Second
)

// Limits bound the resources that clients can use.
type Limits struct {
	MaxBody        int           // request body, bytes; above it 413
	MaxBodyTotal   int           // bytes of all request bodies above 64 KiB together, at least MaxBody; above it 503
	MaxHeader      int           // request head, bytes; above it 431
	MaxConnections int           // open connections; above it they are closed
	MaxRequests    int           // requests in flight; above it 503
	ReadTimeout    time.Duration // time to send a request
	KeepAlive      time.Duration // time that an idle connection is kept
	SlowReader     time.Duration // time of one write to a client
	Idle           time.Duration // time between two reads of the engine's answer
	Total          time.Duration // time of a whole request
}

// Options of New.
type Options struct {
	Engine        address.Address
	EngineTLS     *tls.Config // to dial an https engine
	Authorization string      // header value for the engine; "" sends none
	ForwardAuth   bool        // sends the client's Authorization instead, or none if the client sends none
	EngineOnce    bool        // one connection per request, because the engine holds a thread for each idle one
	ServerInfo    bool        // passes /server_info on; other engines than TensorRT-LLM may have secrets there
	TLS           *tls.Config // configuration of the listener; nil for plain HTTP
	Health        func() (unready string)
	// Adapters answers requests to load and unload LoRA adapters; nil: there are none.
	Adapters func(change AdapterChange) (status int, contentType string, answer []byte)
	// Authenticated says that TLS asks each client for a certificate. Otherwise only clients of
	// this host may change adapters.
	Authenticated bool
	Limits        Limits
	Counters      Counters
	Logger        *slog.Logger
	Audit         *audit.Log // of changes of adapters, and of refused clients; nil: none
	Node          string     // the node's name in Audit
}

// Counters are the counters of the front.
type Counters struct {
	Requests   *prometheus.CounterVec // by code
	Rejected   *prometheus.CounterVec // by reason
	Failures   *prometheus.CounterVec // by phase and kind
	ClientLeft prometheus.Counter
	Panics     prometheus.Counter
	Seconds    prometheus.Observer
}

// Server is the front of one engine. Serve may be called once. Close ends the goroutines that New
// started.
type Server struct {
	o       Options
	http    *fasthttp.Server
	pool    *relay.Pool
	watcher *relay.Watcher
	bodies  intake.Bodies

	inFlight atomic.Int64
	idle     chan struct{} // signalled when inFlight reaches zero
	spoke    atomic.Int64  // when a broken connection was last logged, in Unix ns

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{} // open connections, less those of changes of adapters
	passages map[*passage]struct{} // requests in flight
	closed   bool
}

// New makes a server. The server connects to the engine with the first request.
func New(o Options) (*Server, error) {
	w, err := relay.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	if o.ForwardAuth {
		o.Authorization = "" // a client must not get in by leaving out the header
	}
	s := &Server{o: o, watcher: w, idle: make(chan struct{}, 1), conns: map[net.Conn]struct{}{},
		passages: map[*passage]struct{}{}}
	s.pool = relay.NewPool(relay.Target{
		Network: o.Engine.Network, Addr: o.Engine.Addr, TLS: o.EngineTLS,
		Host: o.Engine.Host, BasePath: o.Engine.BasePath, Authorization: o.Authorization,
	}, relay.PoolOptions{MaxConnections: o.Limits.MaxRequests, Idle: enginePoolIdle})
	s.bodies.Limit, s.bodies.Longest, s.bodies.Buffer, s.bodies.Time = int64(o.Limits.MaxBodyTotal),
		int64(o.Limits.MaxBody), o.Limits.MaxHeader, o.Limits.ReadTimeout
	intake.BoundBuffers()
	s.http = &fasthttp.Server{
		SecureErrorLogMessage: true, // the log must not contain bytes of a request
		Handler:               s.handle, ErrorHandler: s.malformed, HeaderReceived: s.headRead, ConnState: s.track,
		Logger:      s,
		Concurrency: o.Limits.MaxConnections, MaxRequestBodySize: o.Limits.MaxBody, ReadBufferSize: o.Limits.MaxHeader,
		ReadTimeout: o.Limits.ReadTimeout, IdleTimeout: o.Limits.KeepAlive, WriteTimeout: o.Limits.SlowReader,
		NoDefaultServerHeader: true, NoDefaultDate: true, NoDefaultContentType: true,
		DisablePreParseMultipartForm: true, CloseOnShutdown: true,
	}
	return s, nil
}

// Serve answers the connections of ln until Shutdown or Close. Serve closes ln.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	closed := s.closed
	s.listener = ln
	s.mu.Unlock()
	if closed {
		return ln.Close()
	}
	watched := s.watcher.Listen(ln, relay.ListenOptions{SendBufferBytes: sendBufferBytes, Logger: s.o.Logger})
	if s.o.TLS != nil {
		watched = tls.NewListener(watched, s.o.TLS)
	}
	err := s.http.Serve(clients{watched, &s.bodies})
	if s.isClosed() {
		return nil
	}
	return err
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// InFlight returns the number of requests between client and engine.
func (s *Server) InFlight() int { return int(s.inFlight.Load()) }

// Drain returns when no request is in flight, or with the error of ctx. The front still accepts
// requests meanwhile.
func (s *Server) Drain(ctx context.Context) error {
	for s.inFlight.Load() > 0 {
		select {
		case <-s.idle:
		case <-ctx.Done():
			return fmt.Errorf("%d requests in flight: %w", s.InFlight(), ctx.Err())
		}
	}
	return nil
}

// Shutdown stops accepting, cuts the connections of unfinished requests, waits for the answers to
// changes of adapters, and closes the front. Call Drain first to let requests finish.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.Close()
	s.stopAccepting()
	s.cut()
	if err := s.http.ShutdownWithContext(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// cut ends all requests in flight on both sides. A client that does not read, or an engine that
// does not answer, cannot hold them.
func (s *Server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
	for p := range s.passages {
		p.abort.Cancel()
	}
}

// begin returns a new passage that is counted as in flight.
func (s *Server) begin() *passage {
	p := passages.Get().(*passage)
	p.s, p.started, p.ended = s, time.Now(), false
	p.abort.Reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passages[p] = struct{}{}
	if s.closed {
		p.abort.Cancel()
	}
	return p
}

func (s *Server) forget(p *passage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.passages, p)
}

// Close releases the engine's connections, the watcher and the memory kept for bodies.
func (s *Server) Close() {
	s.stopAccepting()
	s.pool.Close()
	s.watcher.Close()
	s.bodies.Close()
}

// track keeps the set of connections for Shutdown. track releases the body of a closed connection.
func (s *Server) track(c net.Conn, state fasthttp.ConnState) {
	if state == fasthttp.StateClosed {
		s.bodies.Closed(&c.(*client).body, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case fasthttp.StateNew:
		s.conns[c] = struct{}{}
		if s.closed {
			_ = c.Close()
		}
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		delete(s.conns, c)
	}
}

// Printf receives fasthttp's log of broken connections, among them clients without a valid
// certificate. Printf logs one message per complainEvery.
func (s *Server) Printf(format string, args ...any) {
	now, last := time.Now().UnixNano(), s.spoke.Load()
	if now-last >= int64(complainEvery) && s.spoke.CompareAndSwap(last, now) {
		s.o.Logger.Warn("connection to the front broken", "error", fmt.Sprintf(format, args...))
	}
}
