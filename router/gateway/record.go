package gateway

import (
	"cmp"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/traces"
	"github.com/cognitora/dataplane/router/trust"
)

// These are the ends of requests that the router ended itself.
const (
	endRefused  = "refused"  // the router answered with an error of its own
	endShutdown = "shutdown" // the router broke the answer off to stop
	endRevoked  = "revoked"  // the router broke the answer off, as the client's key was revoked
)

// record counts a call and writes its line of the access log.
func (g *Gateway) record(c *call, o relay.Outcome) {
	r, a := c.request, c.task.Account(o)
	unreported := func(n int64, has bool) int64 {
		if !has {
			return -1
		}
		return n
	}
	ttft := a.TTFT
	if ttft == 0 {
		ttft = -1
	}
	c.trace(&a, o)
	u := &a.Usage
	g.metrics.Tenants.Count(r.Who.Tenant, r.Who.Named(), c.class(o), metrics.Tokens{
		Prompt: u.Prompt, Cached: u.Cached, Completion: u.Completion,
	})
	prefill, took := c.task.PrefillNode()
	g.noted(accesslog.Entry{
		Time: r.Received, RequestID: c.id, Method: r.Method, Model: a.Model, Asked: r.Asked(), Node: a.Asked,
		Key: r.Who.ID, Tenant: r.Who.Tenant, User: r.Who.User,
		API: r.API.String(), End: c.outcome(o), Cause: cmp.Or(a.Cause, c.why), Status: c.status, TTFT: ttft,
		Expected: a.Expected, Queued: a.Queued,
		Prefill: prefill, PrefillTime: took,
		PromptTokens:     unreported(u.Prompt, u.HasPrompt),
		CompletionTokens: unreported(u.Completion, u.HasCompletion),
		CachedTokens:     unreported(u.Cached, u.HasCached),
		OverlapMatched:   a.Matched, OverlapTotal: a.Blocks, Attempts: a.Attempts,
		Bytes: c.bytes, Stream: c.streaming, Resumed: a.Resumed,
		Cascade: a.Cascade.Name, CascadeStep: a.Cascade.Step, CascadeBefore: a.Cascade.Earlier,
	})
}

// trace describes the call in its span, which ends with the request.
func (c *call) trace(a *plan.Account, o relay.Outcome) {
	r := c.request
	if r.Trace == nil {
		return
	}
	path, _, _ := strings.Cut(r.Path, "?")
	kind, _, _ := find([]byte(r.Method), []byte(path))
	e := traces.RequestEnd{
		ID: string(c.id), Method: r.Method, Route: kind.template(path), API: r.API.String(),
		Generates: kind != routeStored, Asked: string(r.Asked()), Served: a.Model, Status: c.status,
		End: c.outcome(o), Stream: c.streaming, Attempts: a.Attempts, TTFT: a.TTFT, Usage: a.Usage,
		Cascade: a.Cascade.Name, Step: a.Cascade.Step,
	}
	switch { // a request that the client abandons, or that is its mistake, is no failure of the router
	case o == relay.ClientGone || o == relay.SlowReader:
	case c.status >= 500 || o != relay.Complete && c.stage != refused:
		e.Failed, e.Cause = true, cmp.Or(a.Cause, c.why, e.End)
	default:
		e.Cause = c.why
	}
	r.Trace.Describe(&e)
}

// outcome says how the call ended, for the access log.
func (c *call) outcome(o relay.Outcome) string {
	switch {
	case c.stage == refused && o != relay.ClientGone:
		return endRefused
	case o == relay.UpstreamFailed && c.request.Life.Ended() == request.Shutdown:
		return endShutdown
	case o == relay.UpstreamFailed && c.request.Life.Ended() == request.Revoked:
		return endRevoked
	case c.task.Mended() && o != relay.ClientGone && o != relay.SlowReader:
		return relay.Complete.String()
	}
	return o.String()
}

// class says what became of the call, for the metrics of its tenant.
func (c *call) class(o relay.Outcome) metrics.Class {
	switch {
	case o == relay.ClientGone || o == relay.SlowReader:
		return metrics.Left
	case c.status == fasthttp.StatusTooManyRequests:
		return metrics.Limited
	case c.status >= 500:
		return metrics.Failed
	case c.status >= 400:
		return metrics.Refused
	case c.outcome(o) == relay.Complete.String():
		return metrics.OK
	}
	return metrics.Failed
}

// note counts a request that was answered without a call, and writes its line of the access log. An
// unknown method or API is empty; an unknown beginning is zero; who is nil if nobody has asked.
func (g *Gateway) note(ctx *fasthttp.RequestCtx, method, api string, began time.Time, who *trust.Principal) {
	r := &ctx.Response
	e := accesslog.Entry{
		Time: began, RequestID: r.Header.Peek("x-request-id"), Method: method, API: api, Status: r.StatusCode(),
		Bytes: int64(len(r.Body())), End: relay.Complete.String(),
		TTFT: -1, PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1,
	}
	if who != nil {
		e.Key, e.Tenant, e.User = who.ID, who.Tenant, who.User
	}
	if e.Status >= 400 {
		e.End = endRefused
		e.Cause, _ = ctx.UserValue(causeKey).(string)
	}
	if method == fasthttp.MethodHead {
		e.Bytes = 0
	}
	if began.IsZero() {
		e.Time = time.Now()
	}
	g.noted(e)
}

// noted counts a request and writes its line of the access log.
func (g *Gateway) noted(e accesslog.Entry) {
	g.metrics.Requests.Inc(e.API, e.Model, e.Status)
	if g.access != nil {
		e.Duration = time.Since(e.Time)
		g.access.Log(&e)
	}
}
