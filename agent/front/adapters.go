package front

import (
	"crypto/tls"
	"encoding/json"
	"net/netip"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/pki"
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
		s.o.Audit.Refuse(audit.Refusal{
			Reason: errStranger.code, Detail: errStranger.message, Client: ctx.RemoteAddr().String(), Port: "serving",
			Asked: "POST " + string(ctx.Path()),
		})
		s.reject(ctx, errStranger)
		return
	case len(body) > maxAdapterBody || json.Unmarshal(body, &change) != nil || change.Name == "" ||
		!change.Unload && change.Path == "":
		s.reject(ctx, errAdapter)
		return
	}
	s.spare(ctx)
	status, contentType, answer := s.o.Adapters(change)
	s.o.Audit.Act(audit.Act{
		Action: "POST " + string(ctx.Path()), Object: "node=" + s.o.Node + " adapter=" + change.Name, By: by(ctx),
		Client: ctx.RemoteAddr().String(), Outcome: strconv.Itoa(status),
	})
	ctx.SetStatusCode(status)
	if contentType != "" {
		ctx.SetContentType(contentType)
	}
	ctx.SetBody(answer)
	s.count(status)
}

// by names the client's certificate; "": it has shown none.
func by(ctx *fasthttp.RequestCtx) string {
	if at, ok := ctx.Conn().(*client); ok {
		if c, ok := at.Conn.(*tls.Conn); ok {
			state := c.ConnectionState()
			return pki.NameIn(&state)
		}
	}
	return ""
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
