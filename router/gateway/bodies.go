package gateway

import (
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/router/apierror"
)

const (
	smallBody  = 64 << 10              // bytes of a body that are not counted: connections bound them well enough
	growStep   = 256 << 10             // bytes that a body of unknown length takes at a time
	bodyGrace  = 20                    // the part of the time for a body in which it is not asked how fast it comes
	cutEvery   = 10 * time.Millisecond // between two searches for slow bodies of which the first has found too few
	chunked    = -1                    // a ContentLength
	unreadBody = 1                     // bytes; a MaxRequestBodySize that none of the counted bodies fits
)

// bodies bounds the bytes of request bodies that are held at once. What a body takes is set
// aside when its length is announced, because that is when the server allocates it: of a
// chunked one, chunk by chunk. It is given back with the end of the request or of the
// connection.
//
// A client that announces much and sends little keeps its room from others only for as long as
// nobody needs it: then the bodies that come too slowly to be whole in time are cut first.
type bodies struct {
	limit   int64
	longest int64         // bytes of one body
	buffer  int           // bytes that the server reads ahead on a connection
	time    time.Duration // for a body to come

	mu    sync.Mutex
	total int64
	held  map[*arrival]heldBody // at most limit/smallBody
	cutAt time.Time             // no search for slow bodies before
}

type heldBody struct {
	size  int64
	since time.Time // zero: it has been read
}

// take sets size bytes aside for the body of a, in place of what it had, and reports whether
// there is room. since is when its bytes began to come, zero if all have.
func (b *bodies) take(a *arrival, size int64, since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(a)
	if b.total+size > b.limit {
		b.cut(b.total + size - b.limit)
	}
	if b.total+size > b.limit {
		return false
	}
	if b.held == nil {
		b.held = map[*arrival]heldBody{}
	}
	b.total += size
	b.held[a] = heldBody{size, since}
	a.holds.Store(true)
	return true
}

// grow takes room for what a read of up to n bytes may add to a body of unknown length. A longer read than the server's
// buffer goes into the body itself, which has been allocated for all of it.
func (b *bodies) grow(a *arrival, n int) error {
	if a.grows.IsZero() {
		return nil
	}
	need := a.got.Load()
	if n > b.buffer {
		need += int64(n)
	}
	if need = min(need, b.longest); need <= max(a.room, smallBody) {
		return nil
	}
	room := min((need+growStep-1)/growStep*growStep, b.longest)
	if !b.take(a, room, a.grows) {
		a.fault = errBodies
		return errBodies
	}
	a.room = room
	return nil
}

// give ends what was set aside for a, if anything was.
func (b *bodies) give(a *arrival) {
	if !a.holds.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(a)
}

func (b *bodies) drop(a *arrival) {
	b.total -= b.held[a].size
	delete(b.held, a)
	a.holds.Store(false)
}

// cut ends the reading of bodies that come too slowly, until bytes are free.
func (b *bodies) cut(bytes int64) {
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
			a.conn.SetReadDeadline(now) // its reader answers 408
		}
	}
	if bytes > 0 {
		b.cutAt = now.Add(cutEvery)
	}
}

// slow tells whether a body of size bytes, of which got came in that time, will not be whole in time.
func (b *bodies) slow(size, got int64, took time.Duration) bool {
	return took > b.time/bodyGrace && float64(got)/float64(size) < float64(took)/float64(b.time)
}

// headRead gives a request body more time than its head, and room if there is any.
func (g *Gateway) headRead(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: g.limits.BodyTimeout, WriteTimeout: g.limits.SlowReader}
	a := arrivingAt(intake.ContextOf(h))
	a.named(h)
	if a.fault = faultOf(h); a.fault != nil {
		c.MaxRequestBodySize = unreadBody
		return c
	}
	switch n := h.ContentLength(); {
	case n == chunked:
		a.grows = time.Now()
	case g.counts(n) && !g.bodies.take(a, int64(n), time.Now()):
		c.MaxRequestBodySize = unreadBody
	}
	return c
}

// faultOf says what makes a request one that must not be answered. A body that is framed in two ways ends elsewhere for
// a proxy in front than here, and what follows it would be taken for a request of somebody else's.
func faultOf(h *fasthttp.RequestHeader) *apierror.Error {
	if v := h.Protocol(); string(v) != "HTTP/1.1" && string(v) != "HTTP/1.0" {
		return errVersion
	}
	if h.ContentLength() == chunked && intake.TwiceFramed(h) {
		return errFraming
	}
	return nil
}

// counts tells whether an announced body of n bytes is one for which room is taken.
func (g *Gateway) counts(n int) bool { return n > smallBody && n <= g.limits.MaxBody }

// whole notes that the body of a request has been read, and reports whether there is room for it.
func (g *Gateway) whole(ctx *fasthttp.RequestCtx) bool {
	n := len(ctx.Request.Body())
	return n <= smallBody || g.bodies.take(arrivingAt(ctx), int64(n), time.Time{})
}
