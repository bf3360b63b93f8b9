// Package intake is what the router's port and the agent's do alike with what
// clients send, before either knows what it is about.
package intake

import (
	"bytes"
	"sync"

	"github.com/valyala/fasthttp"
)

// changing are the paths under /v1/ by which an engine is changed for everybody.
var changing = map[string]bool{
	"/v1/load_lora_adapter": true, "/v1/unload_lora_adapter": true,
}

// ChangesEngine tells whether path is an endpoint under /v1/ that changes an
// engine for everybody: not for clients. The path is normalised, without dot
// segments and doubled slashes.
func ChangesEngine(path []byte) bool { return changing[string(path)] }

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

// keptBody is the size, in bytes, above which body buffers are not kept for
// later requests.
const keptBody = 1 << 20

// BoundBuffers bounds the body buffers that fasthttp keeps. They are the
// process's, not a server's, so everybody who makes one calls this.
var BoundBuffers = sync.OnceFunc(func() { fasthttp.SetBodySizePoolLimit(keptBody, keptBody) })
