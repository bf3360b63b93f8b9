//go:build linux

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
	"golang.org/x/sys/unix"
)

// ErrClosed says that the server has been closed.
var ErrClosed = errors.New("lease: server closed")

// Store has the blocks. It may be a store.Store.
type Store interface {
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error
	Touch(addrs []block.Addr)
	Delete(ctx context.Context, a block.Addr) (bool, error)
	Pin(ctx context.Context, a block.Addr, owner string, until int64) error
	Unpin(a block.Addr, owner string)
	Arena() *ram.Arena
}

// knower is a Store that must know the text of a namespace before a client asks for its blocks.
type knower interface{ Know(namespace string) }

// Server serves the blocks of one store on lease sockets.
type Server struct {
	store    Store
	names    knower // nil: the store needs no texts of namespaces
	o        Options
	instance uint64
	arenaFD  int
	arena    int64
	count    counters
	buffers  buffers
	logged   atomic.Int64 // see mayLog

	ctx    context.Context // for store operations; Close ends it
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections and the sweeper

	stopping atomic.Bool // no more connections and leases

	mu        sync.Mutex
	listeners map[*net.UnixListener]struct{}
	conns     map[*conn]struct{} // open, or with leases
	processes map[int32]int      // connections by pid
	users     map[uint32]*user   // users with connections, by uid
	drained   chan struct{}      // poked when a connection leaves conns
}

// user counts connections and leases of one user.
type user struct {
	conns  int // guarded by Server.mu
	leased atomic.Int64
}

// New makes a server of st's blocks. Clients get the arena's sealed memfd.
func New(st Store, o Options) (*Server, error) {
	fd := int(st.Arena().File().Fd())
	o.setDefaults(st.Arena().Size())
	if o.Find == nil {
		o.Find = st.StatAll
	}
	s := &Server{
		store: st, o: o, instance: rand.Uint64() | 1, arenaFD: fd, arena: st.Arena().Size(),
		listeners: map[*net.UnixListener]struct{}{}, conns: map[*conn]struct{}{}, processes: map[int32]int{},
		users:   map[uint32]*user{},
		drained: make(chan struct{}, 1), buffers: newBuffers(o.MaxLongFrames),
	}
	s.names, _ = st.(knower)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.sweep)
	return s, nil
}

// Serve accepts connections from l until Close, and then returns ErrClosed. It closes l.
func (s *Server) Serve(l *net.UnixListener) error {
	defer l.Close()
	s.mu.Lock()
	if s.stopping.Load() {
		s.mu.Unlock()
		return ErrClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	may := listen.AccessTo(l.Addr().String(), s.o.AllowUIDs, s.o.AllowGIDs)
	for {
		c, err := l.AcceptUnix()
		if err == nil {
			s.admit(c, may)
			continue
		}
		if s.stopping.Load() {
			return ErrClosed
		}
		if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ECONNABORTED) {
			return fmt.Errorf("lease: accept: %w", err)
		}
		s.o.Logger.Warn("lease socket cannot accept for now", "error", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.ctx.Done():
			return ErrClosed
		}
	}
}

// errStranger is the reason for which a process is refused.
var errStranger = errors.New("neither its user nor its groups may use this socket, whatever its file's mode allows")

// admit serves a connection, or sends the reason for a refusal and closes.
func (s *Server) admit(nc *net.UnixConn, may listen.Access) {
	s.count.connections.Add(1)
	raw, err := nc.SyscallConn()
	if err != nil {
		nc.Close()
		return
	}
	p, allowed, err := may.Check(raw)
	c := &conn{server: s, net: nc, raw: raw, peer: p}
	switch {
	case !allowed:
		s.count.denied.Add(1)
		if s.mayLog() {
			s.o.Logger.Warn("lease socket refused a connection", "uid", p.UID, "gid", p.GID, "pid", p.PID,
				"error", cmp.Or(err, errStranger))
		}
		s.o.Audit.Process("lease", p, cmp.Or(err, errStranger))
		c.decline(&frame.Error{Status: frame.StatusDenied,
			Text: "neither your user nor your groups may use this socket"})
	case !s.enter(c):
		s.count.busy.Add(1)
		c.decline(&frame.Error{Status: frame.StatusBusy,
			Text: "connections of the server or of your process are used up"})
	}
}

// enter adds c to the server's connections and starts its goroutine. It returns false if there are
// too many.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() || len(s.conns) >= s.o.MaxClients || s.processes[c.peer.PID] >= s.o.MaxClientsPerProcess {
		return false
	}
	s.conns[c] = struct{}{}
	s.processes[c.peer.PID]++
	if c.user = s.users[c.peer.UID]; c.user == nil {
		c.user = &user{}
		s.users[c.peer.UID] = c.user
	}
	c.user.conns++
	s.wg.Go(c.serve)
	return true
}

// leave removes c, which must be closed and hold nothing.
func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, in := s.conns[c]; !in {
		return
	}
	delete(s.conns, c)
	if s.processes[c.peer.PID]--; s.processes[c.peer.PID] <= 0 {
		delete(s.processes, c.peer.PID)
	}
	if c.user.conns--; c.user.conns == 0 {
		delete(s.users, c.peer.UID)
	}
	select {
	case s.drained <- struct{}{}:
	default:
	}
}

// Shutdown stops accepting and leasing, waits until no client has a lease or ctx ends, and closes.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	for s.count.leases.Load() > 0 {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), s.Close())
		case <-s.drained:
		}
	}
	return s.Close()
}

// stop ends accepting.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping.Store(true)
	for l := range s.listeners {
		l.Close()
	}
}

// Close ends all connections and waits for their operations. Blocks under running leases stay held
// until the process ends, because clients may still be reading.
func (s *Server) Close() error {
	s.stop()
	s.cancel()
	s.mu.Lock()
	for c := range s.conns { // wakes the goroutine, which closes the connection
		_ = c.net.SetDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
