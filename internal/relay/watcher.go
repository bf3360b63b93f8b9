package relay

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Watcher notices that a client has left while its connection is neither read nor written: during
// prefill, in a silent stream, during a non-stream call. All connections share one epoll instance
// and one goroutine. On systems other than Linux a Watcher notices nothing, and only a failing
// write shows that the client has left.
//
// A client has left when its FIN or RST has arrived. A client that only shuts down its sending side
// looks the same, and counts as having left, as with most HTTP servers.
type Watcher struct {
	poller *poller
	done   chan struct{}

	mu     sync.Mutex
	closed bool
	last   uint64
	conns  map[uint64]*watched // registered connections, by a number that is never reused
}

// NewWatcher starts a Watcher. Close ends the Watcher.
func NewWatcher() (*Watcher, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	w := &Watcher{poller: p, done: make(chan struct{}), conns: map[uint64]*watched{}}
	go func() {
		defer close(w.done)
		if err := p.run(w.event); !w.isClosed() {
			slog.Error("clients that leave are only noticed when they are written to", "error", err)
		}
	}()
	return w, nil
}

func (w *Watcher) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// Close stops watching and waits for a running callback.
func (w *Watcher) Close() {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if first {
		w.poller.close()
	}
	<-w.done
}

// Watch calls onGone once if the client of c leaves before stop is called. If the client is known
// to have left, Watch calls onGone before Watch returns. After stop has returned, onGone is not
// running and will not be called. onGone must be quick and must not call stop. stop may be called
// more than once, but not after c was closed or watched again.
//
// For connections from Listen, and TLS over them, Watch does not allocate, and makes no system call
// after the first request. Other connections are registered anew each time. In-memory connections
// are not watched.
func (w *Watcher) Watch(c net.Conn, onGone func()) (stop func()) {
	if cc := clientConnOf(c); cc != nil {
		cc.watched.start(onGone)
		return cc.stop
	}
	fd, ok := socketOf(c)
	if !ok {
		return func() {}
	}
	one := &watched{w: w, fd: fd}
	one.start(onGone)
	return func() {
		one.stop()
		one.end()
	}
}

// event runs on the watcher's goroutine.
func (w *Watcher) event(id uint64) {
	w.mu.Lock()
	c := w.conns[id]
	w.mu.Unlock()
	if c != nil { // nil: the event was late, and the connection is closed
		c.left()
	}
}

// add registers c and reports whether it succeeded.
func (w *Watcher) add(c *watched) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.poller.add(c.fd, w.last+1) != nil {
		return false
	}
	w.last++
	c.id = w.last
	w.conns[c.id] = c
	return true
}

func (w *Watcher) remove(c *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.poller.remove(c.fd)
	}
	delete(w.conns, c.id)
}

// watched is one connection of a watcher. While the connection is being registered, the lock also
// keeps its descriptor open, since another connection could reuse a closed descriptor.
type watched struct {
	w  *Watcher
	fd int
	id uint64

	mu         sync.Mutex
	onGone     func()
	alsoGone   func()
	registered bool
	gone       bool // a FIN or RST has come, or it is closed
}

func (c *watched) start(onGone func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone && !c.registered {
		c.registered = c.w.add(c)
	}
	if c.gone {
		onGone()
		return
	}
	c.onGone = onGone
}

func (c *watched) stop() {
	c.mu.Lock()
	c.onGone = nil
	c.mu.Unlock()
}

func (c *watched) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	if c.onGone != nil {
		c.onGone()
		c.onGone = nil
	}
	if c.alsoGone != nil {
		c.alsoGone()
		c.alsoGone = nil
	}
}

// also adds the callback onLeft: if the client leaves before alone is called, onLeft runs after the
// callback of start. also returns false if the client has left already.
func (c *watched) also(onLeft func()) (here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.alsoGone = onLeft
	}
	return !c.gone
}

// alone ends also, and reports whether the client is still there.
func (c *watched) alone() (here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alsoGone = nil
	return !c.gone
}

// pause stops watching. The connection is registered anew, with fd, when it is watched again.
func (c *watched) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.onGone = nil; c.registered {
		c.registered = false
		c.w.remove(c)
	}
}

// end removes the connection from the watcher. The connection's descriptor may be closed
// afterwards.
func (c *watched) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone = true; c.registered {
		c.registered = false
		c.w.remove(c)
	}
}

// ListenOptions tune the connections that Watcher.Listen accepts.
type ListenOptions struct {
	// SendBufferBytes bounds the bytes that the kernel holds for a client that does not read. With
	// a smaller bound the server notices earlier that a client does not read. 0 leaves the kernel's
	// own limit, which grows to megabytes.
	SendBufferBytes int
	Logger          *slog.Logger // nil: slog.Default
}

// Listen wraps l so that its connections are cheap to Watch. The wrapper's Accept waits and retries
// while the process is short of descriptors or memory.
func (w *Watcher) Listen(l net.Listener, o ListenOptions) net.Listener {
	return &listener{&acceptor{Listener: l, log: o.Logger}, w, o}
}

type listener struct {
	net.Listener
	w *Watcher
	o ListenOptions
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	fd, ok := socketOf(c)
	if !ok {
		return c, nil
	}
	if b, ok := c.(interface{ SetWriteBuffer(int) error }); ok && l.o.SendBufferBytes > 0 {
		b.SetWriteBuffer(l.o.SendBufferBytes)
	}
	cc := &clientConn{Conn: c, watched: watched{w: l.w, fd: fd}, writing: deadline{writes: true}}
	cc.stop = cc.watched.stop
	return cc, nil
}

// clientConn is a client's connection.
type clientConn struct {
	net.Conn
	watched watched
	stop    func() // watched.stop, bound once
	bounded bool   // Reply has set a write deadline; only the serving goroutine uses bounded
	linger  atomic.Bool

	reading, writing deadline

	Parkable
	parked  parked
	handing bool   // the connection is being or has been handed over
	broken  error  // error of a write meanwhile
	ahead   []byte // bytes read from the connection before it was parked
}

// Read removes the write deadline that the last streamed response has left.
func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.bounded {
		c.bounded = false
		c.writing.set(c.Conn, time.Time{})
	}
	for {
		n, err := c.Conn.Read(p)
		if n > 0 || err == nil || !isTimeout(err) || !c.reading.early(c.Conn) {
			return n, err
		}
	}
}

// Write succeeds while the connection is being handed over, as SetDeadline does.
func (c *clientConn) Write(p []byte) (n int, err error) {
	for {
		var m int
		m, err = c.Conn.Write(p[n:])
		if n += m; err == nil || !isTimeout(err) || !c.writing.early(c.Conn) {
			break
		}
	}
	if err != nil && c.handing {
		c.broken = err
		return len(p), nil
	}
	return n, err
}

// SetDeadline succeeds while the connection is being handed over, so that fasthttp always calls the
// function given to Hijack.
func (c *clientConn) SetDeadline(t time.Time) error {
	err := c.SetReadDeadline(t)
	if err2 := c.SetWriteDeadline(t); err2 != nil {
		err = err2
	}
	if c.handing {
		return nil
	}
	return err
}

// SetReadDeadline may be called by other goroutines.
func (c *clientConn) SetReadDeadline(t time.Time) error { return c.reading.set(c.Conn, t) }

// SetWriteDeadline is like SetDeadline.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	err := c.writing.set(c.Conn, t)
	if c.handing {
		return nil
	}
	return err
}

func (c *clientConn) Close() error {
	if c.Kept() || c.parked.end() {
		return nil
	}
	if c.linger.Swap(false) {
		c.discard()
	}
	c.watched.end()
	return c.Conn.Close()
}

// clientConnOf returns the clientConn under c, or nil.
func clientConnOf(c net.Conn) *clientConn {
	for {
		if cc, ok := c.(*clientConn); ok {
			return cc
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = over.NetConn()
	}
}

// socketOf returns the descriptor under c, which is valid until c is closed.
func socketOf(c net.Conn) (fd int, ok bool) {
	for over, wraps := c.(interface{ NetConn() net.Conn }); wraps; over, wraps = c.(interface{ NetConn() net.Conn }) {
		c = over.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(s uintptr) { fd = int(s) })
	return fd, err == nil
}
