package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
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
	c := g.begin(ctx, scan.Responses)
	defer g.survive(c)
	c.forward()
	node, err := g.holder(id)
	if err == nil {
		err = g.dispatch.Forward(c.job, node)
	}
	if err != nil {
		c.refuse(err)
	}
}
