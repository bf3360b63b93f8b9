// Package transport carries blocks between cache daemons: the frames of kvcached/wire over QUIC, or
// over TLS on TCP where UDP is slow or blocked. The asking side uses a Peer, and does not see which
// lane carries an operation. The answering side implements Handler. Payloads go from the memory of
// the Handler to the memory of the caller.
//
// Both sides always show a certificate of the fleet's CA. The certificate's role decides which
// operations are allowed.
//
// An operation that fails because a kept connection is dead is tried again on a fresh one. So a Put
// or Delete may be carried out twice. Nothing is sent or accepted before the handshake is done, so
// nobody can replay a request.
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

// ErrUnreachable says that dialling the peer failed, now or so recently that it is not tried again
// yet.
var ErrUnreachable = errors.New("transport: peer cannot be reached")

// ErrHandshake says that one side refused the other's certificate, or speaks another protocol.
var ErrHandshake = errors.New("transport: handshake refused")

// ErrClosed says that the pool or the peer was closed.
var ErrClosed = errors.New("transport: closed")

// Item has a block's address and the metadata that are kept with it.
type Item struct {
	Addr      block.Addr
	Namespace string       // canonical text whose ID is Addr.Model
	Key       []byte       // the client's name for the block, at most block.MaxKey; nil for block addresses
	Parent    block.Digest // zero: none
	Expires   int64        // Unix ms; 0: never
	Attr      []byte       // opaque, at most block.MaxAttr
}

// Found is a block that a peer has.
type Found struct {
	Item   Item
	Length int        // of the whole block in bytes
	CRC    uint32     // CRC32C of the whole block, or of the requested part
	Stamp  wire.Stamp // last purge that the peer's blocks were checked against
}

// Get asks for a block or a part of it.
type Get struct {
	Addr      block.Addr
	Namespace string // canonical text
	Offset    int    // of the part in bytes
	Length    int    // of the part in bytes; 0: to the end
	// Hint is the length of the block in bytes, if known. Without it a large block takes one more
	// round trip.
	Hint int

	// Alloc returns memory for exactly n bytes of the block. It is called at most once, after the
	// peer has answered, possibly on another goroutine. Its error ends the operation. The memory
	// holds the block only after Get has returned without an error, because checksums come last.
	Alloc func(f Found, n int) ([]byte, error)

	// Progress is called for each piece that comes, from several goroutines. It must be quick. nil:
	// no calls.
	Progress func()

	paid bool // bandwidth has counted its bytes already
}

// Put sends a block to a peer, over one connection whatever its length. One frame has the whole
// block. With several connections the peer would have to join parts, and to keep parts whose rest
// never comes.
type Put struct {
	Item     Item
	Payload  []byte     // at most wire.MaxBody; unchanged until the end of the operation
	CRC      uint32     // CRC32C of Payload, computed by the block's maker
	Durable  bool       // answer when the block is on stable storage
	IfAbsent bool       // keep an existing block
	Stamp    wire.Stamp // last purge that the block was checked against
}

// Handler answers operations. The peer gets the wire.Status that an error wraps. An error without a
// status is logged, and is wire.Internal for the peer. Methods are called concurrently, with a
// context that ends at the operation's deadline or when the peer gives up.
type Handler interface {
	Get(ctx context.Context, a block.Addr) (Block, error)
	// Create reserves memory for a block of the given length.
	Create(ctx context.Context, it Item, length int) (Draft, error)
	// Stat fills in out, which is zero and as long as addrs.
	Stat(ctx context.Context, addrs []block.Addr, out []wire.Info) error
	// Delete deletes blocks, and sets out[i] if addrs[i] existed.
	Delete(ctx context.Context, addrs []block.Addr, out []bool) error
	Locate(ctx context.Context, addrs []block.Addr) (*wire.Locations, error)
	Announce(ctx context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error)
	// Expire sets the time at which blocks expire, in Unix ms, and sets out[i] if addrs[i] exists.
	Expire(ctx context.Context, addrs []block.Addr, unixMS int64, out []bool) error
	// Purge carries out a list of purges and returns how many blocks it removed.
	Purge(ctx context.Context, list []byte) (blocks int, err error)
	// Purges returns the list of purges that this host knows. fresh says that the host does not
	// hide its blocks, and has read etcd's list after it was asked.
	Purges(ctx context.Context) (list []byte, fresh bool, err error)
}

// Block is a block that is being read. Its bytes are valid, and do not change, until Release, which
// is called once.
type Block interface {
	Bytes() []byte
	Found() Found
	Release()
}

// Draft is a block that is being written.
type Draft interface {
	Bytes() []byte // memory of the requested length
	Filled(n int)  // the next n bytes are in place
	// Commit publishes the block if c.CRC is its checksum. Otherwise the error wraps wire.Corrupt.
	Commit(ctx context.Context, c Commit) error
	Abort() // always called; does nothing after Commit
}

// Commit has the options of Draft.Commit.
type Commit struct {
	CRC      uint32
	Durable  bool
	IfAbsent bool
	Stamp    wire.Stamp // last purge that the peer has checked the block against
}

// Allow tells whether a certificate's role allows an operation.
type Allow func(role pki.Role, op wire.Op) bool

// DefaultAllow lets cache daemons and ctl do everything, and routers and agents read. Cache daemons
// delete, because they drop a key that another host has set again or deleted.
func DefaultAllow(role pki.Role, op wire.Op) bool {
	switch role {
	case pki.Ctl, pki.KVCached:
		return true
	case pki.Router, pki.Agent:
		return op.Reads() || op.Grants()
	}
	return false
}

// Remote is the host that asks.
type Remote struct {
	Host string // address without port
	Role pki.Role
}

type remoteKey struct{}

// RemoteOf returns the host that asks, in a Handler's context.
func RemoteOf(ctx context.Context) Remote {
	r, _ := ctx.Value(remoteKey{}).(Remote)
	return r
}

// statusOf returns the status that tells a peer of err.
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

// The bytes between two checks of stalls and caps. receiveStep is so small that the bytes are still
// in the CPU's cache for their checksum. cappedStep lets streams take turns. sendStep is so large
// that the sender always has bytes.
const (
	receiveStep = 256 << 10
	cappedStep  = 64 << 10
	sendStep    = 1 << 20
)

// flow moves payloads over one stream.
type flow struct {
	duplex
	caps  *Bandwidth
	stall time.Duration // longest time of a step
}

// past is a deadline that ends blocked calls.
var past = time.Unix(1, 0)

// whenDone calls fn when ctx ends, unless stop is called before. After stop, fn does not run.
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

// watchdog calls a function when it is not fed for d.
type watchdog struct {
	t   *time.Timer
	ran chan struct{}
	d   time.Duration
}

func newWatchdog(d time.Duration, fn func()) watchdog {
	ran := make(chan struct{})
	return watchdog{time.AfterFunc(d, func() { defer close(ran); fn() }), ran, d}
}

// feed starts d anew, unless the function was called.
func (w watchdog) feed() {
	if w.t.Stop() {
		w.t.Reset(w.d)
	}
}

// stop tells whether the function was never called. After stop the function does not run.
func (w watchdog) stop() bool {
	if w.t.Stop() {
		return true
	}
	<-w.ran
	return false
}

// receive fills p from r, the reader of the stream. It calls filled after each step, also with the
// bytes of the last incomplete one. A watchdog ends stalls, because a deadline of the stream would
// cost quic-go a timer for each packet or two.
func (w flow) receive(ctx context.Context, r io.Reader, p []byte, filled func(part []byte)) error {
	if len(p) == 0 {
		return nil
	}
	dog := newWatchdog(w.stall, func() { _ = w.SetReadDeadline(past) })
	err := w.read(ctx, r, p, func(part []byte) {
		dog.feed()
		filled(part)
	})
	if !dog.stop() && err == nil { // the watchdog fired after the last byte had come
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
