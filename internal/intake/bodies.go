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
	// SmallBody is the largest body, in bytes, that is not counted. The limit of connections bounds
	// these bodies well enough.
	SmallBody = 64 << 10
	// Unread is a MaxRequestBodySize that is smaller than any counted body.
	Unread = 1

	growStep  = 256 << 10             // step in which room for a body of unknown length is reserved, in bytes
	bodyGrace = 20                    // in this fraction of the time limit a body's speed is not checked
	cutEvery  = 10 * time.Millisecond // least time before the next search for slow bodies after one that found too few
	chunked   = -1                    // the ContentLength of a chunked body
)

// ErrNoRoom is the error of reading a body of unknown length if Bodies has no room for more of it.
var ErrNoRoom = errors.New("intake: no room for the request body")

// Bodies bounds the bytes of request bodies that are held at once. Bodies reserves room for a body
// when the length is announced, and for a chunked body chunk by chunk. Give releases the room, at
// the latest at the end of the connection.
//
// On Linux the server reads a counted body, and every chunked one, into a region that takes memory
// as bytes come. The memory is at most the reserved room, rounded up to pages, and the memory of
// the kept regions. On other systems, and with vm.overcommit_memory=2, the server allocates the
// announced length, rounded up to a power of two.
//
// A client that announces much and sends little keeps its room only until others need it. When
// others need room, bodies that are too slow to be complete in time are cut first.
//
// The exported fields must be set before use.
type Bodies struct {
	Limit   int64         // bytes of all bodies above SmallBody and of all kept bodies together
	Longest int64         // bytes of one body; the server refuses a longer one
	Buffer  int           // bytes that the server reads ahead on a connection
	Time    time.Duration // time limit of a body

	mu      sync.Mutex
	total   int64
	held    map[*Body]heldBody // at most Limit/SmallBody, plus one for each kept body
	cutAt   time.Time          // time of the next allowed search for slow bodies
	regions regions
}

type heldBody struct {
	size  int64
	since time.Time // zero: completely read
}

// Body is the state of the request body that is being read from a connection. Only got and holds
// may be used by other goroutines. The other fields belong to the goroutine that serves the
// connection. Once the body is kept, they belong to the goroutine that ends the body's request.
type Body struct {
	Conn net.Conn // its reading is ended by a deadline if the body is too slow while others need room

	grows time.Time    // start of a body of unknown length; zero: the length is known
	room  int64        // bytes of room that such a body has reserved
	got   atomic.Int64 // bytes of the request that have come
	holds atomic.Bool  // it has room or memory

	// Target of the server's reads. server and memory are written with Bodies.mu held, because
	// Closed and searches of other bodies read them.
	server net.Conn // the connection as the reading server knows it
	memory region
	ctx    *fasthttp.RequestCtx // the context whose body buffer is memory; nil: none
	buffer []byte               // the former buffer of ctx
	wrote  int                  // written bytes of memory; 0: unknown
}

// Came counts n received bytes, and returns the received bytes of the request so far.
func (a *Body) Came(n int) int64 { return a.got.Add(int64(n)) }

// Next begins the next request. Next does not release what a holds.
func (a *Body) Next() {
	a.grows, a.room = time.Time{}, 0
	a.got.Store(0)
}

// Announce reserves room for the body that the head of ctx announces, if its length is known and
// counts. Announce gives the server memory to read the body into. Announce returns false if there
// is no room.
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

// provide makes the server of ctx read the body into a region. At most want bytes of the region
// take memory already.
func (b *Bodies) provide(a *Body, ctx *fasthttp.RequestCtx, want int) {
	var m region
	if b.Longest > SmallBody { // the server drops larger buffers with the request, in any case
		m = b.regions.take(int(b.Longest)+len("\r\n"), want) // the server reads a chunk together with its line end
	}
	if m.bytes != nil {
		a.ctx, a.buffer, a.wrote = ctx, ctx.Request.SwapBody(m.bytes[:0]), 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a.memory, a.server = m, ctx.Conn()
	a.holds.Store(true)
}

// Counts tells whether a body of n announced bytes needs room.
func (b *Bodies) Counts(n int) bool { return n > SmallBody && int64(n) <= b.Longest }

// Grow reserves room for a read of up to n bytes of a body of unknown length, or returns ErrNoRoom.
// A read longer than the server's buffer goes directly into the body, whose memory the server has
// allocated completely.
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

// Whole records that a body of n bytes has been read, and reports whether there is room for it.
func (b *Bodies) Whole(a *Body, n int) bool {
	a.wrote = n + len("\r\n")
	return n <= SmallBody || b.take(a, int64(n), time.Time{})
}

// Keep takes the completely read body out of ctx, which other requests will use. The body does not
// move until Give. A small body is counted from now on, even above Limit; later bodies are then
// refused.
func (b *Bodies) Keep(a *Body, ctx *fasthttp.RequestCtx) {
	ctx.Request.SwapBody(a.buffer) // the garbage collector frees a body outside a region
	a.ctx, a.buffer = nil, nil
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, counted := b.held[a]; !counted {
		b.hold(a, heldBody{size: int64(a.wrote)})
	}
}

// Give releases the room and memory of a. The request's body is empty afterwards.
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

// Closed is Give for a server that has finished with the connection c. The server may have lost the
// connection between head and body, and nobody reports that. If another server has taken over the
// connection by then, its body stays.
func (b *Bodies) Closed(a *Body, c net.Conn) {
	if !a.holds.Load() {
		return
	}
	b.mu.Lock()
	mine := a.server == c
	b.mu.Unlock()
	if mine {
		a.ctx, a.buffer = nil, nil // the server has released them
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

// Close releases the memory that is kept for later bodies. Held bodies keep theirs until Give.
func (b *Bodies) Close() { b.regions.close() }

// Held returns how many bytes are reserved.
func (b *Bodies) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// hold counts h for a. The caller holds b.mu.
func (b *Bodies) hold(a *Body, h heldBody) {
	if b.held == nil {
		b.held = map[*Body]heldBody{}
	}
	b.total += h.size
	b.held[a] = h
	a.holds.Store(true)
}

// take reserves size bytes for a instead of its former room, and reports whether there is room.
// since is when its first bytes came; zero if all have come.
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

// cut ends the reading of slow bodies until this many bytes are free.
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

// slow tells whether a body of size bytes will not be complete in time, if got bytes have come in
// the time took.
func (b *Bodies) slow(size, got int64, took time.Duration) bool {
	return took > b.Time/bodyGrace && float64(got)/float64(size) < float64(took)/float64(b.Time)
}
