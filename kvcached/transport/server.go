package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/logging"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// ServerOptions are the options of NewServer.
type ServerOptions struct {
	Handler  Handler       // must be given
	Identity *pki.Identity // must be given
	Allow    Allow         // nil: DefaultAllow
	Logger   *slog.Logger  // nil: slog.Default()
	Audit    *audit.Log    // of refused peers; nil: none

	UDP       []net.PacketConn // one QUIC listener each; closed by Close
	TCP       net.Listener     // TLS lane; nil: none. Closed by Close
	Tuning    Tuning
	Bandwidth *Bandwidth // nil: no caps

	// ResetKey lets a restarted server tell its peers at once that their connections are gone. It
	// must be secret and survive the restart. nil: the peers notice after Tuning.Idle.
	ResetKey *[32]byte

	// Rails are the cards by which peers may read this host's memory; nil: RDMA operations are
	// unknown.
	Rails *Rails
	Grant time.Duration // time a peer has to read a granted block; 0: 5 s
	// Stamp returns the last purge that this host's blocks are checked against; nil: purges are not
	// numbered.
	Stamp func() wire.Stamp

	MaxPeers       int // hosts connected at a time; 0: MaxHosts. Connections of further hosts are closed
	Stripes        int // QUIC connections of each host for which Tuning.Receive has room; 0: 4
	MaxConnections int // connections of one host; 0: 64. Further ones are closed
	MaxOps         int // operations of one host at a time; 0: 256. Further ones get wire.Busy
	// MaxInFlight bounds the payload bytes of all operations at a time. One host may have a quarter
	// of it, and grants may have half. 0: 1 GiB. Further operations get wire.Busy.
	MaxInFlight int64
	OpTimeout   time.Duration // longest operation; its frame may ask for less; 0: 60 s
	Stall       time.Duration // longest time for 1 MiB, or 64 KiB with caps; 0: 15 s
	Idle        time.Duration // TLS connections without an operation are closed; 0: 2 min
}

func (o ServerOptions) withDefaults() ServerOptions {
	if o.Allow == nil {
		o.Allow = DefaultAllow
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Stamp == nil {
		o.Stamp = func() wire.Stamp { return wire.Stamp{} }
	}
	o.Tuning = o.Tuning.withDefaults()
	o.MaxPeers, o.Stripes = orInt(o.MaxPeers, MaxHosts), orInt(o.Stripes, defaultStripes)
	o.MaxConnections, o.MaxOps = orInt(o.MaxConnections, 64), orInt(o.MaxOps, 256)
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 1 << 30
	}
	o.OpTimeout = orDuration(o.OpTimeout, 60*time.Second)
	o.Stall = orDuration(o.Stall, 15*time.Second)
	o.Idle = orDuration(o.Idle, 2*time.Minute)
	return o
}

// defaultStripes is the number of QUIC connections between two hosts.
const defaultStripes = 4

func orInt(n, or int) int {
	if n <= 0 {
		return or
	}
	return n
}

func orDuration(d, or time.Duration) time.Duration {
	if d <= 0 {
		return or
	}
	return d
}

// Server answers peers, from NewServer to Close.
type Server struct {
	o       ServerOptions
	tls     *tls.Config
	budget  *receiveBudget
	quic    []*quic.Transport
	listens []*quic.Listener
	bytes   atomic.Int64 // in flight
	count   counters
	granter *granter        // nil: nothing is granted
	stop    context.Context // ends when connections shall end
	cancel  context.CancelCauseFunc
	ops     sync.WaitGroup // operations
	running atomic.Int64   // number of ops
	lastKey atomic.Int64   // Unix ns when a client's own key was last read
	confirm time.Duration  // confirmFor
	workers sync.WaitGroup // accepting and serving goroutines

	seldom logging.Seldom

	closing atomic.Bool // no block begins any more, and no further host may connect; set with mu held
	mu      sync.Mutex
	shut    bool // no operation begins any more
	hosts   map[string]*host
}

// host has the counts of one peer for the limits.
type host struct {
	conns int // guarded by Server.mu
	users int // connections, and sessions that may have grants; guarded by Server.mu
	ops   atomic.Int64
	bytes atomic.Int64 // in flight

	joining bool // a session is being made; guarded by granter.mu
}

// NewServer starts to answer on the sockets in o.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Handler == nil || o.Identity == nil {
		return nil, errors.New("transport: a server needs a handler and an identity")
	}
	o = o.withDefaults()
	s := &Server{o: o, tls: o.Identity.Mutual(wire.ALPN), hosts: map[string]*host{},
		seldom: logging.Seldom{Every: warnEvery}}
	s.budget, s.confirm = newReceiveBudget(o.Tuning, o.MaxPeers*o.Stripes), confirmFor
	if o.Rails != nil {
		s.granter = newGranter(s, &o)
	}
	s.stop, s.cancel = context.WithCancelCause(context.Background())
	for _, c := range o.UDP {
		t := &quic.Transport{Conn: c, ConnContext: s.recorded}
		if o.ResetKey != nil {
			t.StatelessResetKey = (*quic.StatelessResetKey)(o.ResetKey)
		}
		s.quic = append(s.quic, t)
		l, err := t.Listen(s.tls, o.Tuning.config(int64(o.MaxOps), s.budget))
		if err != nil {
			_ = s.Close(context.Background())
			return nil, err
		}
		s.listens = append(s.listens, l)
		s.workers.Go(func() { s.acceptQUIC(l) })
	}
	if o.TCP != nil {
		s.workers.Go(s.acceptTLS)
	}
	return s, nil
}

// errClosing is the cause for which connections end when the server closes.
var errClosing = errors.New("server closes")

// Close stops serving. No block begins any more. Close waits for running operations until ctx ends,
// then breaks off the rest, and waits for them to return.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing.Swap(true) {
		s.mu.Unlock()
		s.workers.Wait()
		return nil
	}
	s.mu.Unlock()
	s.quiet(ctx)
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	for _, l := range s.listens {
		_ = l.Close()
	}
	if s.o.TCP != nil {
		_ = s.o.TCP.Close()
	}
	done := make(chan struct{})
	go func() { defer close(done); s.ops.Wait() }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.cancel(errClosing)
	<-done
	if s.granter != nil {
		s.granter.close()
	}
	s.workers.Wait()
	for i, t := range s.quic {
		_ = t.Close()
		_ = s.o.UDP[i].Close()
	}
	return nil
}

// warnEvery is the shortest time between two warnings of one subject that peers can cause at will.
const warnEvery = time.Minute

func (s *Server) warn(subject, message string, args ...any) {
	s.seldom.Warn(s.o.Logger, subject, message, args...)
}

// begin counts an operation. false: the server closes.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return false
	}
	s.ops.Add(1)
	s.running.Add(1)
	return true
}

func (s *Server) end() {
	s.running.Add(-1)
	s.ops.Done()
}

// enter counts a connection of the host at addr. nil: there are too many.
func (s *Server) enter(addr net.Addr) (*host, string) {
	name := hostOf(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	switch {
	case s.shut, s.closing.Load() && h == nil:
		return nil, name
	case h == nil && len(s.hosts) >= s.o.MaxPeers, h != nil && h.conns >= s.o.MaxConnections:
		s.count.refusedConns.Add(1)
		return nil, name
	case h == nil:
		h = &host{}
		s.hosts[name] = h
	}
	h.conns++
	h.users++
	s.count.conns.Add(1)
	return h, name
}

func (s *Server) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[name]; h.conns == 1 && s.granter != nil {
		s.granter.abandon(name)
	}
	s.hosts[name].conns--
	s.drop(name)
	s.count.conns.Add(-1)
}

// drop forgets a host whose last connection or session has ended. mu is held.
func (s *Server) drop(name string) {
	h := s.hosts[name]
	if h.users--; h.users == 0 {
		delete(s.hosts, name)
	}
}

// attach counts a session of a connected host. So a host that connects anew keeps one share of the
// limits.
func (s *Server) attach(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.users++
}

// detach ends one attach.
func (s *Server) detach(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(name)
}

func hostOf(a net.Addr) string {
	name, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return name
}
