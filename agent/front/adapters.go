package front

import (
	"encoding/json"
	"net/netip"

	"github.com/valyala/fasthttp"
)

// The paths that change the engine's LoRA adapters, with the bodies of vLLM and SGLang. Routers let
// no client's request through to them: they refuse every path with these names.
const (
	loadAdapter   = "/load_lora_adapter"
	unloadAdapter = "/unload_lora_adapter"
)

func changesAdapters(path []byte) bool {
	return string(path) == loadAdapter || string(path) == unloadAdapter
}

// AdapterChange asks to load a LoRA adapter, or to unload it.
type AdapterChange struct {
	Unload bool   `json:"-"`
	Name   string `json:"lora_name"`
	Path   string `json:"lora_path"` // directory on the engine's host, or a name that the engine can find
}

// maxAdapterBody bounds the body of a change, in bytes.
const maxAdapterBody = 16 << 10

// changeAdapter passes a change on. The engine's own answer is the answer.
func (s *Server) changeAdapter(ctx *fasthttp.RequestCtx) {
	change := AdapterChange{Unload: string(ctx.Path()) == unloadAdapter}
	body := ctx.Request.Body()
	switch {
	case s.o.Adapters == nil:
		s.reject(ctx, errNoPath)
		return
	case !ctx.IsPost():
		s.reject(ctx, errPostOnly)
		return
	case !s.o.Authenticated && !ofThisHost(ctx):
		s.reject(ctx, errStranger)
		return
	case len(body) > maxAdapterBody || json.Unmarshal(body, &change) != nil || change.Name == "" ||
		!change.Unload && change.Path == "":
		s.reject(ctx, errAdapter)
		return
	}
	s.spare(ctx)
	status, contentType, answer := s.o.Adapters(change)
	ctx.SetStatusCode(status)
	if contentType != "" {
		ctx.SetContentType(contentType)
	}
	ctx.SetBody(answer)
	s.count(status)
}

// spare keeps the connection of a change from the cut in Shutdown, so that the client gets its
// answer. The connection ends with the answer.
func (s *Server) spare(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, ctx.Conn())
}

// ofThisHost says whether the client is a process of this host.
func ofThisHost(ctx *fasthttp.RequestCtx) bool {
	if ctx.LocalAddr().Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(ctx.RemoteAddr().String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}
