package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/scan"
)

// storedResponse passes a request for a stored response (GET, DELETE, cancel, input_items)
// to the node that stored it. rest is the path behind /v1/responses/.
func (g *Gateway) storedResponse(ctx *fasthttp.RequestCtx, rest []byte) {
	c := g.begin(ctx, scan.Responses)
	defer g.survive(c)
	if err := c.fetch(rest); err != nil {
		c.refuse(err)
	}
}

func (c *call) fetch(rest []byte) *apierror.Error {
	c.forward()
	if err := c.bound(); err != nil {
		return err
	}
	id, _, _ := bytes.Cut(rest, []byte("/"))
	node, err := c.g.dispatch.Holder(c.job, id)
	if err != nil {
		return err
	}
	return c.g.dispatch.Forward(c.job, node)
}
