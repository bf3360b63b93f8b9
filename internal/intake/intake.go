// Package intake handles clients' requests before their purpose is known, in the same way for the
// ports of router and agent.
package intake

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/valyala/fasthttp"
)

// changing is a part of the names of endpoints that change an engine for all clients:
// /v1/load_lora_adapter and /v1/unload_lora_adapter.
var changing = []byte("load_lora_adapter")

// ChangesEngine tells whether path, below /v1/, changes an engine for all clients. Clients may not
// use such an endpoint. Engines and proxies treat slashes, case and escapes in a path differently,
// so every path that contains such a name counts.
func ChangesEngine(path []byte) bool {
	for ; len(path) >= len(changing); path = path[1:] {
		if bytes.EqualFold(path[:len(changing)], changing) {
			return true
		}
	}
	return false
}

// TwiceFramed tells whether a request's head has both Content-Length and Transfer-Encoding. Such a
// request must be refused and its connection closed. A proxy in front may see another end of its
// body, and the bytes after that end would become another client's request.
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

// ContextOf returns the context that contains h. fasthttp gives its HeaderReceived hook only the
// header, but the connection is in the context. fasthttp does not document that the header is
// inside the context. TestContextOf checks that it is, as in v1.74.
func ContextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}

// keptAnswer is the largest response buffer, in bytes, that is kept for reuse.
const keptAnswer = 1 << 20

// BoundBuffers bounds the body buffers that fasthttp keeps. Buffers of requests are bounded to the
// size that Bodies does not count. The buffers belong to the process, so everyone who makes a
// server calls BoundBuffers.
var BoundBuffers = sync.OnceFunc(func() { fasthttp.SetBodySizePoolLimit(SmallBody, keptAnswer) })
