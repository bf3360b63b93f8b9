// Package transport carries blocks between cache daemons: the frames of kvcached/wire over QUIC, or
// over TLS on TCP where UDP is slow or blocked. Who asks uses a Peer and does not see which lane
// carries an operation; who answers implements Handler. Payloads go from the memory that the
// Handler hands out to the memory that the caller hands out.
//
// Both sides show a certificate of the fleet's CA, always; its role says what it may ask for.
//
// An operation that fails because a kept connection turns out to be dead is tried again on a fresh
// one, so a Put or Delete may be carried out twice. Nothing is sent or accepted before the
// handshake is done, so nobody can replay a request.
package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// ErrUnreachable says that the peer could not be dialled, now or so short a time ago that it is not
// tried again yet.
var ErrUnreachable = errors.New("transport: peer cannot be reached")

// ErrHandshake says that one side did not like the other's certificate, or that it speaks another
// protocol.
var ErrHandshake = errors.New("transport: handshake refused")

// ErrClosed says that the pool or the peer was closed.
var ErrClosed = errors.New("transport: closed")

// Item says who a block is and what is kept with it.
type Item struct {
	Addr      block.Addr
	Namespace string       // canonical text whose ID is Addr.Model
	Key       []byte       // the client's name for it, at most block.MaxKey; nil for block addresses
	Parent    block.Digest // zero: none
	Expires   int64        // Unix ms; 0: never
	Attr      []byte       // opaque, at most block.MaxAttr
}

// Found is a block that a peer has.
type Found struct {
	Item   Item
	Length int        // of the whole block in bytes
	CRC    uint32     // CRC32C of the whole block, or of the range where one was asked for
	Stamp  wire.Stamp // up to which purge the peer's blocks were checked
}

// Get asks for a block or a part of it.
type Get struct {
	Addr      block.Addr
	Namespace string // canonical text
	Offset    int    // of the part in bytes
	Length    int    // of the part in bytes; 0: to the end
	// Hint is the length of the block in bytes, as far as known. Without, a large block takes a
	// round trip more.
	Hint int

	// Alloc returns memory for exactly n bytes, into which they are read. It is called at most
	// once, when the peer has said what it has, possibly on another goroutine; its error ends the
	// operation. What is in the memory is the block only when Get has returned without error: until
	// then checksums are outstanding.
	Alloc func(f Found, n int) ([]byte, error)

	// Progress is told of each piece that comes, from several goroutines; it must be quick. nil:
	// nobody is told.
	Progress func()

	paid bool // its bytes have been let pass inward already
}

// Put hands a block to a peer, over one connection whatever its length: a frame of the protocol has
// all of it. Over several the peer would have to put together what comes on different connections,
// and to keep parts of blocks whose others never come.
type Put struct {
	Item     Item
	Payload  []byte     // at most wire.MaxBody; not changed meanwhile
	CRC      uint32     // CRC32C of Payload, taken by who made it
	Durable  bool       // answer when it is on stable storage
	IfAbsent bool       // an existing block stays
	Stamp    wire.Stamp // up to which purge the block was checked
}

// Handler answers operations. Its errors go to the peer as the wire.Status that they wrap; an error
// that wraps none is wire.Internal for the peer and logged. Methods are called concurrently, with a
// context that ends at the operation's deadline or when the peer gives up.
type Handler interface {
	Get(ctx context.Context, a block.Addr) (Block, error)
	// Create reserves memory for a block of the given length.
	Create(ctx context.Context, it Item, length int) (Draft, error)
	// Stat fills out, which is as long as addrs and zero.
	Stat(ctx context.Context, addrs []block.Addr, out []wire.Info) error
	// Delete fills out, which is as long as addrs, with what there was.
	Delete(ctx context.Context, addrs []block.Addr, out []bool) error
	Locate(ctx context.Context, addrs []block.Addr) (*wire.Locations, error)
	Announce(ctx context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error)
	// Expire says when blocks are over, Unix ms, and fills out, which is as long as addrs, with
	// what there was.
	Expire(ctx context.Context, addrs []block.Addr, unixMS int64, out []bool) error
	// Purge carries out a list of purges and returns how many blocks went. An empty list asks for
	// the one that is known here.
	Purge(ctx context.Context, list []byte) (known []byte, blocks int, err error)
}

// Block is a block being read. Bytes are valid, and do not change, until Release, which is called
// once.
type Block interface {
	Bytes() []byte
	Found() Found
	Release()
}

// Draft is a block being written.
type Draft interface {
	Bytes() []byte // memory of the length asked for
	Filled(n int)  // the next n bytes are in place
	// Commit publishes it, if the checksum of the whole is c.CRC; otherwise the error wraps
	// wire.Corrupt.
	Commit(ctx context.Context, c Commit) error
	Abort() // called always; nothing after Commit
}

// Commit says how a Draft is published.
type Commit struct {
	CRC      uint32
	Durable  bool
	IfAbsent bool
	Stamp    wire.Stamp // up to which purge the peer has checked the block
}

// Allow tells whether holders of certificates of a role may do an operation.
type Allow func(role pki.Role, op wire.Op) bool

// DefaultAllow lets cache daemons and ctl do everything, and routers and agents read. Cache daemons
// delete because a key that was set again or deleted on one host is dropped by the others.
func DefaultAllow(role pki.Role, op wire.Op) bool {
	switch role {
	case pki.Ctl, pki.KVCached:
		return true
	case pki.Router, pki.Agent:
		return op.Reads() || op.Grants()
	}
	return false
}

// Remote is who asked.
type Remote struct {
	Host string // address without port
	Role pki.Role
}

type remoteKey struct{}

// RemoteOf tells a Handler who asked.
func RemoteOf(ctx context.Context) Remote {
	r, _ := ctx.Value(remoteKey{}).(Remote)
	return r
}

// statusOf is what a peer is told of err.
func statusOf(err error) wire.Status {
	var s wire.Status
	switch {
	case err == nil:
		return wire.OK
	case errors.As(err, &s):
		return s
	case errors.Is(err, context.DeadlineExceeded):
		return wire.Deadline
	}
	return wire.Internal
}

// duplex is the two directions of one operation.
type duplex interface {
	io.Reader
	io.Writer
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// Bytes that go between two looks at stalls and caps: few enough where a checksum is taken to be in
// the CPU's cache still, few enough where they are capped for streams to take turns, and many
// otherwise, for the sender never to run dry.
const (
	receiveStep = 256 << 10
	cappedStep  = 64 << 10
	sendStep    = 1 << 20
)

// flow moves payloads over one stream.
type flow struct {
	duplex
	caps  *Bandwidth
	stall time.Duration // how long a step may take
}

// past is a deadline that ends what is blocked.
var past = time.Unix(1, 0)

// whenDone calls fn when ctx ends, unless the returned function was called before; after that fn is
// not running.
func whenDone(ctx context.Context, fn func()) (stop func()) {
	ran := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ran)
		fn()
	})
	return func() {
		if !cancel() {
			<-ran
		}
	}
}

// watchdog calls a function when it was not fed for as long as it is set for.
type watchdog struct {
	t   *time.Timer
	ran chan struct{}
	d   time.Duration
}

func newWatchdog(d time.Duration, fn func()) watchdog {
	ran := make(chan struct{})
	return watchdog{time.AfterFunc(d, func() { defer close(ran); fn() }), ran, d}
}

// feed gives it another while, unless it was too late.
func (w watchdog) feed() {
	if w.t.Stop() {
		w.t.Reset(w.d)
	}
}

// stop tells whether the function was never called; if it was, it is not running any more.
func (w watchdog) stop() bool {
	if w.t.Stop() {
		return true
	}
	<-w.ran
	return false
}

// receive fills p from r, the reader of the stream, and calls filled after each step, and with what
// came of the last one. It does not leave stalls to deadlines of the stream: those cost quic-go a
// timer for every packet or two.
func (w flow) receive(ctx context.Context, r io.Reader, p []byte, filled func(part []byte)) error {
	if len(p) == 0 {
		return nil
	}
	dog := newWatchdog(w.stall, func() { _ = w.SetReadDeadline(past) })
	err := w.read(ctx, r, p, func(part []byte) {
		dog.feed()
		filled(part)
	})
	if !dog.stop() && err == nil { // it barked when everything was there
		_ = w.SetReadDeadline(time.Time{})
	}
	return err
}

func (w flow) read(ctx context.Context, r io.Reader, p []byte, filled func(part []byte)) error {
	for len(p) > 0 {
		n := min(len(p), w.caps.step(receiveStep))
		if err := w.caps.wait(ctx, inward, n); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(r, p[:n])
		if n > 0 {
			filled(p[:n])
		}
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("body: %w", err)
		}
		p = p[n:]
	}
	return nil
}

// send writes p.
func (w flow) send(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), w.caps.step(sendStep))
		if err := w.caps.wait(ctx, outward, n); err != nil {
			return err
		}
		_ = w.SetWriteDeadline(time.Now().Add(w.stall))
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := w.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
