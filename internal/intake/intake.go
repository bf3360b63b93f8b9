// Package intake is what the router's port and the agent's do alike with what
// clients send, before either knows what it is about.
package intake

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/valyala/fasthttp"
)

// changing is in the names of the endpoints by which an engine is changed for
// everybody: /v1/load_lora_adapter and /v1/unload_lora_adapter.
var changing = []byte("load_lora_adapter")

// ChangesEngine tells whether path, below /v1/, is an endpoint that changes an
// engine for everybody: not for clients. Engines and what stands in front of
// them differ in what they take for the same path (slashes, case, escapes), so
// every path with such a name in it is one.
func ChangesEngine(path []byte) bool {
	for ; len(path) >= len(changing); path = path[1:] {
		if bytes.EqualFold(path[:len(changing)], changing) {
			return true
		}
	}
	return false
}

// TwiceFramed tells whether a request's head says in two ways where its body
// ends: with Content-Length and with Transfer-Encoding. Such a request must be
// refused and its connection closed, because a proxy in front may see another
// end, and what follows it would be taken for a request of somebody else's.
func TwiceFramed(h *fasthttp.RequestHeader) bool {
	length, transfer := false, false
	for line := range bytes.Lines(h.RawHeaders()) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		name = bytes.TrimSpace(name)
		length = length || bytes.EqualFold(name, []byte("Content-Length"))
		transfer = transfer || bytes.EqualFold(name, []byte("Transfer-Encoding"))
	}
	return length && transfer
}

// ContextOf is the context that h is a part of. fasthttp hands its
// HeaderReceived hook the header in the context of its request; only the latter
// knows the connection. fasthttp does not promise that (it is so in v1.74):
// TestContextOf sees to it.
func ContextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}

// keptAnswer is the size, in bytes, above which buffers of answers are not kept for later ones.
const keptAnswer = 1 << 20

// BoundBuffers bounds the body buffers that fasthttp keeps, those of requests to what Bodies does
// not count. They are the process's, not a server's, so everybody who makes one calls this.
var BoundBuffers = sync.OnceFunc(func() { fasthttp.SetBodySizePoolLimit(SmallBody, keptAnswer) })
