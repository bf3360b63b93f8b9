package gateway

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// listModels answers GET /v1/models with every served model and alias that the principal may use,
// those of cascades included. listModels answers 503 while the fleet is unknown.
func (g *Gateway) listModels(ctx *fasthttp.RequestCtx, who *trust.Principal) {
	known := g.fleet.Load()
	if known.Unheard() {
		g.fail(ctx, scan.Other, leg.ErrFleetUnknown)
		return
	}
	b := []byte(`{"object":"list","data":[`)
	n := 0
	for _, m := range known.Models() {
		if len(m.Nodes) == 0 && !g.plans.Answers(m, who) {
			continue
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if !who.Uses(m.Name) && !who.Uses(name) {
				continue
			}
			if n++; n > 1 {
				b = append(b, ',')
			}
			b = g.appendModel(b, name, m)
		}
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(append(b, `]}`...))
}

// getModel answers GET /v1/models/{id}. getModel says 404 for an unknown or hidden model, and 503
// for a known model that no node serves now.
func (g *Gateway) getModel(ctx *fasthttp.RequestCtx, id []byte, who *trust.Principal) {
	snap := g.fleet.Load()
	m, err := leg.Served(snap, id)
	if own := snap.Model(id); err != nil && own != nil && g.plans.Answers(own, who) {
		m, err = own, nil
	}
	if own := snap.Model(id); own != nil && (!who.Uses(own.Name) && !who.Uses(string(id)) || g.plans.Hides(own, who)) {
		err = leg.UnknownModel(snap, id)
	}
	if err != nil {
		g.fail(ctx, scan.Other, err)
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(g.appendModel(nil, string(id), m))
}

func (g *Gateway) appendModel(b []byte, name string, m *fleet.ModelView) []byte {
	b = append(b, `{"id":`...)
	b = jsonscan.AppendQuoted(b, []byte(name))
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, g.started.Unix(), 10)
	b = append(b, `,"owned_by":"cognitora"`...)
	if name != m.Name {
		b = append(b, `,"root":`...)
		b = jsonscan.AppendQuoted(b, []byte(m.Name))
	}
	return append(b, '}')
}
