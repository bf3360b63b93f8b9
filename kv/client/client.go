//go:build linux

package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/frame"
	"golang.org/x/sys/unix"
)

// Options are the settings of a Client. Each field names the default of its zero value.
type Options struct {
	Name    string // name of the program, at most 32 bytes; name and user own the pins; ""
	Sockets int    // limit on connections, and on requests at once; 4
}

// Client gives a program access to the cache daemon of its host. Any number of goroutines may call
// its methods.
type Client struct {
	path   string
	o      Options
	pool   pool
	closed atomic.Bool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu    sync.Mutex
	arena *arena   // of the last daemon that answered; the client holds a reference
	known []string // namespaces passed to Know; each new daemon gets them again
}

// dialTimeout bounds connecting and greeting, if ctx allows longer.
const dialTimeout = 5 * time.Second

// Dial connects to the lease socket at path.
func Dial(ctx context.Context, path string) (*Client, error) { return Options{}.Dial(ctx, path) }

// Dial connects to the lease socket at path with these options.
func (o Options) Dial(ctx context.Context, path string) (*Client, error) {
	if len(o.Name) > 32 {
		return nil, fmt.Errorf("kv: name %q has more than 32 bytes", o.Name)
	}
	if o.Sockets <= 0 {
		o.Sockets = 4
	}
	c := &Client{path: path, o: o}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.pool = pool{dial: c.dial, turns: make(chan struct{}, o.Sockets), ctx: c.ctx, all: map[*socket]struct{}{}}
	s, err := c.pool.get(ctx)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	c.pool.put(s)
	return c, nil
}

// Close ends all leases and connections. The memory of open Views stays readable until they are
// closed.
func (c *Client) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.cancel()
	c.pool.close()
	c.mu.Lock()
	c.arena.drop()
	c.arena = nil
	c.mu.Unlock()
	return nil
}

// dial makes a connection and greets the daemon.
func (c *Client) dial(ctx context.Context) (*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w (%w)", ErrDenied, err)
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", ErrGone, err)
	}
	s := &socket{client: c, net: conn.(*net.UnixConn), in: make([]byte, frame.MaxFrame)}
	s.timer = time.AfterFunc(time.Hour, s.late)
	s.timer.Stop()
	if err := c.greet(ctx, s); err != nil {
		s.kill()
		s.retire()
		return nil, err
	}
	return s, nil
}

// greet sends Hello. greet maps the daemon's arena unless that is already mapped.
func (c *Client) greet(ctx context.Context, s *socket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	hello := frame.Hello{Min: frame.Version, Max: frame.Version}
	if c.arena != nil {
		hello.Have = c.arena.instance
	}
	copy(hello.Name[:], c.o.Name)
	s.begin(frame.OpHello, 0)
	s.out = frame.AppendHello(s.out, &hello)
	before := frame.Monotonic()
	_, body, err := s.exchange(ctx)
	if err != nil {
		s.closeFiles()
		return err
	}
	s.welcome = frame.ParseWelcome(body)
	const slack = int64(5 * time.Millisecond) // both clocks are read through an offset that was measured once
	if now := s.welcome.NowNS; now < before-slack || now > frame.Monotonic()+slack {
		s.closeFiles()
		return ErrClock
	}
	if s.welcome.Attached {
		if err := c.replaceArena(s); err != nil {
			return err
		}
	}
	if c.arena == nil || c.arena.instance != s.welcome.Instance {
		return fmt.Errorf("%w: a daemon without memory", ErrProtocol)
	}
	s.arena = c.arena
	s.arena.refs.Add(1)
	for i := 0; s.welcome.Attached && i < len(c.known); i++ {
		if err := s.know(ctx, c.known[i]); err != nil {
			return err
		}
	}
	return nil
}

// replaceArena maps the arena that came with the answer. The caller holds mu.
func (c *Client) replaceArena(s *socket) error {
	f, err := s.file()
	if err != nil {
		return err
	}
	if c.ctx.Err() != nil {
		f.Close()
		return ErrClosed
	}
	data, err := mapFile(f, s.welcome.ArenaSize, unix.PROT_READ, seals)
	if err != nil {
		return err
	}
	c.arena.drop()
	a := &arena{instance: s.welcome.Instance, data: data}
	a.refs.Store(1)
	c.arena = a
	return nil
}

// retire frees the resources of a dead socket.
func (s *socket) retire() {
	s.unstage()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	s.arena.drop()
	s.arena = nil
}

// done returns a socket to the pool after a request.
func (c *Client) done(s *socket, err error) {
	c.pool.put(s)
	if errors.Is(err, ErrGone) {
		c.pool.prune()
	}
}
