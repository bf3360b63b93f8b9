package intake

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	// SmallBody is the size, in bytes, up to which bodies are not counted: connections bound them
	// well enough.
	SmallBody = 64 << 10
	// Unread is a MaxRequestBodySize that no counted body fits.
	Unread = 1

	growStep  = 256 << 10             // bytes that a body of unknown length takes at a time
	bodyGrace = 20                    // the part of the time for a body in which it is not asked how fast it comes
	cutEvery  = 10 * time.Millisecond // between two searches for slow bodies of which the first has found too few
	chunked   = -1                    // a ContentLength
)

// ErrNoRoom is what reading a body of unknown length fails with where Bodies has no room for more
// of it.
var ErrNoRoom = errors.New("intake: no room for the request body")

// Bodies bounds the bytes of request bodies that are held at once. Room for a body is set aside
// when its length is announced: of a chunked one, chunk by chunk. It is given back by Give, at the
// latest with the end of the connection.
//
// On Linux the server reads such a body, and every chunked one, into a region that takes memory as
// bytes come: no more than the room that is set aside, rounded up to pages, and what keptRegions
// keep for the next ones. Elsewhere, and where the system commits no more memory than it has
// (vm.overcommit_memory=2), the server allocates what is announced, and rounds it up to a power of
// two.
//
// A client that announces much and sends little keeps its room from others only for as long as
// nobody needs it: then the bodies that come too slowly to be whole in time are cut first.
//
// The fields that are exported are set before its use.
type Bodies struct {
	Limit   int64         // bytes of all bodies above SmallBody, and of those that are kept, together
	Longest int64         // bytes of one body; above it the server refuses it
	Buffer  int           // bytes that the server reads ahead on a connection
	Time    time.Duration // for a body to come

	mu      sync.Mutex
	total   int64
	held    map[*Body]heldBody // at most Limit/SmallBody, and one for each lent stream
	cutAt   time.Time          // no search for slow bodies before
	regions regions
}

type heldBody struct {
	size  int64
	since time.Time // zero: it has been read
}

// Body is what is known of the request body that is being read from a connection. Apart from what
// has come and whether it holds anything, only the goroutine uses it that serves the connection,
// and once the body is kept the one that ends its request.
type Body struct {
	Conn net.Conn // whose reading ends, as by a deadline, if the body comes too slowly while others need room

	grows time.Time    // it is of unknown length, and has come since; zero: it is not
	room  int64        // bytes that it has taken then
	got   atomic.Int64 // bytes that have come of the request
	holds atomic.Bool  // room is taken for it, or memory

	// Where the server reads it into. server and memory are written with Bodies.mu held, for Closed
	// and for others' searches.
	server net.Conn // the connection as the server that reads it was given it
	memory region
	ctx    *fasthttp.RequestCtx // whose body buffer is memory; nil: none's
	buffer []byte               // that it had before
	wrote  int                  // bytes of memory that have been written to; 0: not known
}

// Came notes that n bytes have come, and returns how many those of the request are by now.
func (a *Body) Came(n int) int64 { return a.got.Add(int64(n)) }

// Next forgets a request that has come, not what it holds: what comes from then on is another one.
func (a *Body) Next() {
	a.grows, a.room = time.Time{}, 0
	a.got.Store(0)
}

// Announce takes room for the body that the head of ctx has announced, where its length is known
// and counts, and gives the server memory to read it into. false: there is no room.
func (b *Bodies) Announce(a *Body, ctx *fasthttp.RequestCtx) bool {
	n := ctx.Request.Header.ContentLength()
	switch {
	case n == chunked:
		a.grows = time.Now()
		b.provide(a, ctx, SmallBody)
	case b.Counts(n):
		if !b.take(a, int64(n), time.Now()) {
			return false
		}
		b.provide(a, ctx, n)
	}
	return true
}

// provide has the server of ctx read the body into a region of which no more than want bytes take
// memory yet.
func (b *Bodies) provide(a *Body, ctx *fasthttp.RequestCtx, want int) {
	var m region
	if b.Longest > SmallBody { // the server forgets buffers above that with the request, whatever has become of it
		m = b.regions.take(int(b.Longest)+len("\r\n"), want) // the end of a chunk is read with it
	}
	if m.bytes != nil {
		a.ctx, a.buffer, a.wrote = ctx, ctx.Request.SwapBody(m.bytes[:0]), 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a.memory, a.server = m, ctx.Conn()
	a.holds.Store(true)
}

// Counts tells whether an announced body of n bytes is one for which room is taken.
func (b *Bodies) Counts(n int) bool { return n > SmallBody && int64(n) <= b.Longest }

// Grow takes room for what a read of up to n bytes may add to a body of unknown length, or returns
// ErrNoRoom. A longer read than the server's buffer goes into the body itself, which has been
// allocated for all of it.
func (b *Bodies) Grow(a *Body, n int) error {
	if a.grows.IsZero() {
		return nil
	}
	need := a.got.Load()
	if n > b.Buffer {
		need += int64(n)
	}
	if need = min(need, b.Longest); need <= max(a.room, SmallBody) {
		return nil
	}
	room := min((need+growStep-1)/growStep*growStep, b.Longest)
	if !b.take(a, room, a.grows) {
		return ErrNoRoom
	}
	a.room = room
	return nil
}

// Whole notes that a body of n bytes has been read, and reports whether there is room for it.
func (b *Bodies) Whole(a *Body, n int) bool {
	a.wrote = n + len("\r\n")
	return n <= SmallBody || b.take(a, int64(n), time.Time{})
}

// Keep takes the body, which has been read, out of ctx, which is going to be used for other
// requests: it lies where it is until Give. A small one is counted from now on, even where that is
// above Limit: then those to come are refused.
func (b *Bodies) Keep(a *Body, ctx *fasthttp.RequestCtx) {
	ctx.Request.SwapBody(a.buffer) // a body that is not in a region is the garbage collector's from now on
	a.ctx, a.buffer = nil, nil
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, counted := b.held[a]; !counted {
		b.hold(a, heldBody{size: int64(a.wrote)})
	}
}

// Give ends what was set aside for a, if anything was: the request's body is empty then.
func (b *Bodies) Give(a *Body) {
	if !a.holds.Load() {
		return
	}
	if a.ctx != nil {
		a.ctx.Request.SwapBody(a.buffer)
		a.ctx, a.buffer = nil, nil
	}
	b.giveBack(a)
}

// Closed is Give for a server that is through with the connection it knows as c: it may have lost
// it between head and body, where nobody is told. Another server that goes on with the connection
// by then keeps what it has taken.
func (b *Bodies) Closed(a *Body, c net.Conn) {
	if !a.holds.Load() {
		return
	}
	b.mu.Lock()
	mine := a.server == c
	b.mu.Unlock()
	if mine {
		a.ctx, a.buffer = nil, nil // which the server has let go of
		b.giveBack(a)
	}
}

func (b *Bodies) giveBack(a *Body) {
	m := a.memory
	if a.wrote == 0 {
		a.wrote = len(m.bytes)
	}
	m.resident = max(m.resident, min(a.wrote, len(m.bytes)))
	b.regions.give(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	a.memory, a.server, a.wrote = region{}, nil, 0
	b.drop(a)
}

// Close gives back the memory that is kept for bodies to come. Those that are held keep theirs
// until Give.
func (b *Bodies) Close() { b.regions.close() }

// Held is how many bytes are set aside.
func (b *Bodies) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// hold counts h for a. b.mu is held.
func (b *Bodies) hold(a *Body, h heldBody) {
	if b.held == nil {
		b.held = map[*Body]heldBody{}
	}
	b.total += h.size
	b.held[a] = h
	a.holds.Store(true)
}

// take sets size bytes aside for a, in place of what it had, and reports whether there is room.
// since is when its bytes began to come, zero if all have.
func (b *Bodies) take(a *Body, size int64, since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(a)
	if b.total+size > b.Limit {
		b.cut(b.total + size - b.Limit)
	}
	if b.total+size > b.Limit {
		return false
	}
	b.hold(a, heldBody{size, since})
	return true
}

func (b *Bodies) drop(a *Body) {
	b.total -= b.held[a].size
	delete(b.held, a)
	a.holds.Store(a.memory.bytes != nil)
}

// cut ends the reading of bodies that come too slowly, until bytes are free.
func (b *Bodies) cut(bytes int64) {
	now := time.Now()
	if now.Before(b.cutAt) {
		return
	}
	for a, body := range b.held {
		if bytes <= 0 {
			return
		}
		if !body.since.IsZero() && b.slow(body.size, a.got.Load(), now.Sub(body.since)) {
			bytes -= body.size
			b.drop(a)
			a.Conn.SetReadDeadline(now) // its reader answers 408
		}
	}
	if bytes > 0 {
		b.cutAt = now.Add(cutEvery)
	}
}

// slow tells whether a body of size bytes, of which got came in that time, will not be whole in
// time.
func (b *Bodies) slow(size, got int64, took time.Duration) bool {
	return took > b.Time/bodyGrace && float64(got)/float64(size) < float64(took)/float64(b.Time)
}
