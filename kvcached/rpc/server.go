// Package rpc serves cognitora.v1.Kv over gRPC: on a Unix socket for programs of this host, and
// with mutual TLS for the fleet.
//
// The package is for lookups and for operating the daemon. It also moves bytes, with a copy on each
// side. For many bytes use the lease socket on this host, and cgn-kv/1 between hosts.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Bounds of messages.
const (
	MaxLookup = 32768     // digests of a BatchLookup, and of a Report
	MaxBatch  = 4096      // digests of every other call
	MaxPiece  = 1 << 20   // bytes of a payload in one message
	MaxOwner  = 64        // bytes of an owner's name
	MaxList   = 1000      // blocks of a List
	maxHead   = 128 << 10 // bytes of a message besides digests or payload
)

// ErrPlain refuses to serve a TCP address without TLS.
var ErrPlain = errors.New("rpc: a TCP address needs certificates")

// Store has the blocks; *store.Store is one.
type Store interface {
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Warm(ctx context.Context, a block.Addr) error
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	Stat(ctx context.Context, a block.Addr) (store.Info, error)
	StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error
	Delete(ctx context.Context, a block.Addr) (bool, error)
	Pin(ctx context.Context, a block.Addr, owner string, until int64) error
	Unpin(a block.Addr, owner string)
	Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (next uint64, err error)
	Stats() store.Stats
	Namespaces() []store.NamespaceUsage
}

// knower is a Store that has to be told the text of a namespace before its blocks are asked for.
type knower interface{ Know(namespace string) }

// Outcome is the result for one block of a batch, with the protocol's values.
type Outcome uint8

// The outcomes.
const (
	OK Outcome = iota + 1
	Miss
	Full
	Failed
)

// Fleet moves blocks between hosts. The result for addrs[i], all of one namespace, goes to out[i],
// which is 0 before. An error says that nothing was tried.
type Fleet interface {
	// Promote may wait for blocks that no host has yet.
	Promote(ctx context.Context, namespace string, addrs []block.Addr, wait Wait, out []Outcome) error
	Push(ctx context.Context, peer, namespace string, addrs []block.Addr, out []Outcome) error
	Pull(ctx context.Context, peer, namespace string, addrs []block.Addr, out []Outcome) error
}

// Chunks is told which blocks chunks stand for; *chunks.Table is one.
type Chunks interface {
	// Namespace returns the namespace in which told chunks with this number of tokens count; empty:
	// none.
	Namespace(s *alias.Source, tokens int) string
	Tell(s *alias.Source, all []alias.Chunk) (taken int, err error)
	// Parts returns the keys of the chunks of a namespace that end with these blocks, of which the
	// prompt's last one comes first, and of so many chunks before. digests are those of the keys'
	// addresses, the prompt's first chunk first, and all is the number of chunks.
	Parts(namespace string, last []block.Name, before int) (keys string, digests []block.Digest, all int)
}

// Options of a Server.
type Options struct {
	// Store has the blocks. Required.
	Store Store
	// Purge removes blocks from all hosts. Nil: it is refused.
	Purge purge.Func
	// Residency answers Watch and takes Report. Required.
	Residency *residency.Index
	// Chunks takes TellChunks. Nil: it is refused.
	Chunks Chunks
	// Fleet is asked for Promote, Push and Pull. Nil: Promote brings up this host's own blocks, the
	// others are refused.
	Fleet Fleet
	// Pulled returns the speed, in bytes per second, at which blocks of other hosts came here
	// lately; 0: none came yet. Nil: the daemon exchanges no blocks with other hosts.
	Pulled func() float64
	// Lanes is asked for Peers and ReleaseDevice. Nil: they are refused.
	Lanes Lanes
	// Parts returns more structs of counters for Stats, by the prefixes of their values. Nil: none.
	Parts func() map[string]any
	// Insecure allows a loopback TCP address without TLS, on which every caller may do everything.
	// False: refused.
	Insecure bool
	// MaxConnections bounds the connections of each listener; 0: 1024. One more is closed at once.
	MaxConnections int
	// Transfers bounds the calls of Get, Put, Push and Pull, and of Promote without a wait; 0: 128.
	// One more is RESOURCE_EXHAUSTED.
	Transfers int
	// Waits bounds the calls of Promote with a wait; 0: 128. One more is RESOURCE_EXHAUSTED.
	Waits int
	// Watchers bounds the Watch streams; 0: 64. One more is RESOURCE_EXHAUSTED.
	Watchers int
	// TransferTime bounds a Get or Put, so that a stopped peer gives its room back; 0: 1 minute.
	TransferTime time.Duration
	// Drain is how long calls may go on when serving ends; 0: 5 s.
	Drain time.Duration
	// Logger gets the messages for the operator. Nil: slog.Default().
	Logger *slog.Logger
	// Audit gets a line for each call that removes blocks or operates the daemon, and for each
	// refused caller. Nil: none.
	Audit *audit.Log
}

// Server answers the calls of any number of listeners.
type Server struct {
	o         Options
	log       *slog.Logger
	transfers chan struct{}
	waits     chan struct{}
	watchers  chan struct{}
	methods   map[string]*method // by full name
	names     knower             // nil: the store needs no texts of namespaces
	space     atomic.Pointer[space]
	stats     counters
}

// New makes a server.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Residency == nil {
		return nil, errors.New("rpc: Store and Residency are required")
	}
	set := func(p *int, def int) {
		if *p <= 0 {
			*p = def
		}
	}
	set(&o.MaxConnections, 1024)
	set(&o.Transfers, 128)
	set(&o.Waits, 128)
	set(&o.Watchers, 64)
	if o.TransferTime <= 0 {
		o.TransferTime = time.Minute
	}
	if o.Drain <= 0 {
		o.Drain = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{o: o, log: o.Logger, transfers: make(chan struct{}, o.Transfers),
		waits: make(chan struct{}, o.Waits), watchers: make(chan struct{}, o.Watchers)}
	s.methods = methods()
	s.names, _ = o.Store.(knower)
	return s, nil
}

// service answers on one listener, until ending is done.
type service struct {
	pb.UnimplementedKvServer
	*Server
	ending context.Context
}

// Serve answers on l until ctx is done, and closes l. Then calls have Options.Drain to end, and
// Watch ends at once. A TCP address needs id, or Options.Insecure on loopback. Otherwise the error
// is ErrPlain.
func (s *Server) Serve(ctx context.Context, l net.Listener, id *pki.Identity) error {
	creds, err := s.credentials(l, id)
	if err != nil {
		l.Close()
		return err
	}
	g := grpc.NewServer(s.serverOptions(creds)...)
	pb.RegisterKvServer(g, &service{Server: s, ending: ctx})
	served := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() { served <- g.Serve(&limited{Listener: l, most: int64(s.o.MaxConnections), stats: &s.stats}) })
	defer all.Wait()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("rpc: %w", err)
	case <-ctx.Done():
	}
	force := time.AfterFunc(s.o.Drain, func() {
		s.log.Warn("gRPC calls have not ended in time", "drain", s.o.Drain)
		g.Stop()
	})
	defer force.Stop()
	g.GracefulStop()
	return nil
}

func (s *Server) credentials(l net.Listener, id *pki.Identity) (credentials.TransportCredentials, error) {
	switch {
	case l.Addr().Network() == "unix":
		return peerCredentials{s, listen.AccessTo(l.Addr().String(), nil, nil)}, nil
	case id != nil:
		return audit.Credentials(credentials.NewTLS(id.Mutual("h2")), s.o.Audit, auditedPort), nil
	case s.o.Insecure && listen.Loopback(l.Addr().String()):
		return insecure.NewCredentials(), nil
	}
	return nil, fmt.Errorf("%w: %s; give a certificate, or use the Unix socket", ErrPlain, l.Addr())
}

func (s *Server) serverOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.InTapHandle(s.tap),
		grpc.MaxRecvMsgSize(max(MaxPiece, MaxLookup*len(block.Digest{})) + maxHead),
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.StaticStreamWindowSize(512 << 10),
		grpc.StaticConnWindowSize(1 << 20),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
	}
}

// short is a method's name without its service.
func short(fullMethod string) string { return fullMethod[strings.LastIndexByte(fullMethod, '/')+1:] }
