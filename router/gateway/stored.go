package gateway

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/scan"
)

// holder is the node that stored a response. A fleet of one node needs no memory of that.
func (g *Gateway) holder(id []byte) (node string, err *apierror.Error) {
	snap := g.fleet.Load()
	node, known := g.stored.Node(id)
	switch {
	case !known && len(snap.Nodes) == 1:
		return snap.Nodes[0].ID, nil
	case !known:
		return "", errNoResponse
	case snap.Node(node) == nil:
		return "", errNodeGone
	}
	return node, nil
}

// storedResponse passes a request for a stored response (GET, DELETE, cancel, input_items)
// to the node that stored it. rest is the path behind /v1/responses/.
func (g *Gateway) storedResponse(ctx *fasthttp.RequestCtx, rest []byte) {
	id, _, _ := bytes.Cut(rest, []byte("/"))
	node, err := g.holder(id)
	if err == nil {
		n := g.fleet.Load().Node(node)
		if n == nil {
			err = errNodeGone
		} else {
			err = g.pass(ctx, n)
		}
	}
	if err != nil {
		g.fail(ctx, scan.Responses, err)
	}
	g.count(scan.Responses, "", ctx.Response.StatusCode())
}

// pass sends the request as it is to one node and relays the answer.
func (g *Gateway) pass(ctx *fasthttp.RequestCtx, n *fleet.Node) *apierror.Error {
	n.AcquireAlways()
	abort := &relay.Abort{}
	stop := g.watcher.Watch(ctx.Conn(), abort.Cancel)
	fail := func() *apierror.Error {
		stop()
		n.Release()
		return errUpstream
	}
	r := &relay.Request{
		Method: string(ctx.Method()), Path: string(ctx.RequestURI()), Abort: abort,
		Header: relay.AppendForwardHeaders(nil, &ctx.Request.Header), Body: [][]byte{ctx.Request.Body()},
	}
	if g.forwardAuth && n.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = ctx.Request.Header.Peek("Authorization")
	}
	deadline := time.Now().Add(storedTimeout)
	ex, err := n.Pool.Send(r, deadline)
	if err != nil {
		return fail()
	}
	if ex.ReadHead(deadline) != nil {
		ex.Close()
		return fail()
	}
	ex.SetIdleTimeout(storedTimeout)
	id := append([]byte(nil), ctx.Response.Header.Peek("x-request-id")...)
	ctx.Response.Header.Reset()
	ctx.SetStatusCode(ex.Status())
	relay.CopyHeaders(&ctx.Response.Header, ex)
	ctx.Response.Header.SetBytesV("X-Request-Id", id)
	ctx.Response.Header.Set("X-Cgn-Node", n.ID)
	if relay.Reply(ctx, ex, relay.ReplyOptions{SlowReader: g.limits.SlowReader, Observer: passing{n}, Stop: stop}) != nil {
		ex.Close()
		return fail()
	}
	return nil
}

// storedTimeout bounds each wait on the node that stored a response.
const storedTimeout = 60 * time.Second

// passing gives the node's slot back when an answer has gone through.
type passing struct{ n *fleet.Node }

func (passing) Event(sse.Event) bool { return true }
func (passing) Body([]byte, bool)    {}
func (passing) Tail(dst []byte, _ relay.Outcome, _ error) []byte {
	return apierror.StreamEvent(dst, scan.Responses, errUpstream)
}
func (p passing) Done(relay.Outcome, error) { p.n.Release() }
