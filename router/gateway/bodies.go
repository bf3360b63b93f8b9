package gateway

import (
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	smallBody  = 64 << 10        // bytes of a body that are not counted: connections bound them well enough
	keptBody   = 1 << 20         // larger body buffers are not kept for a connection's next request
	bodyGrace  = 5 * time.Second // added to the time for reading a body before it is taken for lost
	unreadBody = 1               // bytes; a MaxRequestBodySize that none of the counted bodies fits
)

// bodies bounds the bytes of request bodies that are held at once. What a body takes is set
// aside when its length is announced, that of a chunked one when it has been read. It is known
// by the header of its request, whose memory is its connection's as long as the request lasts.
//
// The server tells nobody of a connection that ends between a request's head and its body.
// Such a reservation ends once the time for reading the body has passed and its room is needed.
type bodies struct {
	limit int64

	mu    sync.Mutex
	total int64
	held  map[*fasthttp.RequestHeader]heldBody
}

type heldBody struct {
	size  int64
	until time.Time // by when it has been read; zero: it has been
}

// take sets size bytes aside for the request of h, in place of what it had, and reports
// whether there is room. Its body is lost unless it is taken again until then; the zero time
// says that it has been read.
func (b *bodies) take(h *fasthttp.RequestHeader, size int64, now, until time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(h)
	if b.total+size > b.limit {
		b.dropLost(now)
	}
	if b.total+size > b.limit {
		return false
	}
	if b.held == nil {
		b.held = map[*fasthttp.RequestHeader]heldBody{}
	}
	b.total += size
	b.held[h] = heldBody{size, until}
	return true
}

// give ends what was set aside for the request of h, if anything was.
func (b *bodies) give(h *fasthttp.RequestHeader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(h)
}

func (b *bodies) drop(h *fasthttp.RequestHeader) {
	b.total -= b.held[h].size
	delete(b.held, h)
}

func (b *bodies) dropLost(now time.Time) {
	for h, body := range b.held {
		if !body.until.IsZero() && now.After(body.until) {
			b.drop(h)
		}
	}
}

// bodyBounds gives a request body more time than its head, and room if there is any.
func (g *Gateway) bodyBounds(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: g.limits.BodyTimeout, WriteTimeout: g.limits.SlowReader}
	if n := h.ContentLength(); g.counts(n) {
		now := time.Now()
		if !g.bodies.take(h, int64(n), now, now.Add(g.limits.BodyTimeout+bodyGrace)) {
			c.MaxRequestBodySize = unreadBody
		}
	}
	return c
}

// counts tells whether an announced body of n bytes is one for which room is taken.
func (g *Gateway) counts(n int) bool { return n > smallBody && n <= g.limits.MaxBody }

// holds notes that the body of a request has been read, and reports whether there is room for it.
func (g *Gateway) holds(ctx *fasthttp.RequestCtx) bool {
	n := len(ctx.Request.Body())
	return n <= smallBody || g.bodies.take(&ctx.Request.Header, int64(n), time.Now(), time.Time{})
}

// release is the end of a request whose body has been read.
func (g *Gateway) release(ctx *fasthttp.RequestCtx) {
	if len(ctx.Request.Body()) > smallBody {
		g.bodies.give(&ctx.Request.Header)
	}
}
