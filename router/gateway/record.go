package gateway

import (
	"cmp"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/request"
)

// These are the ends of requests that the router ended itself.
const (
	endRefused  = "refused"  // the router answered with an error of its own
	endShutdown = "shutdown" // the router broke the answer off to stop
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
	u := &a.Usage
	g.noted(accesslog.Entry{
		Time: r.Received, RequestID: c.id, Method: r.Method, Model: a.Model, Asked: r.Asked(), Node: a.Asked,
		API: r.API.String(), End: c.outcome(o), Cause: cmp.Or(a.Cause, c.why), Status: c.status, TTFT: ttft,
		Expected:         a.Expected,
		PromptTokens:     unreported(u.Prompt, u.HasPrompt),
		CompletionTokens: unreported(u.Completion, u.HasCompletion),
		CachedTokens:     unreported(u.Cached, u.HasCached),
		OverlapMatched:   a.Matched, OverlapTotal: a.Blocks, Attempts: a.Attempts,
		Bytes: c.bytes, Stream: c.streaming, Resumed: a.Resumed,
	})
}

// outcome says how the call ended, for the access log.
func (c *call) outcome(o relay.Outcome) string {
	switch {
	case c.stage == refused && o != relay.ClientGone:
		return endRefused
	case o == relay.UpstreamFailed && c.request.Life.Ended() == request.Shutdown:
		return endShutdown
	case c.task.Mended() && o != relay.ClientGone && o != relay.SlowReader:
		return relay.Complete.String()
	}
	return o.String()
}

// note counts a request that was answered without a call, and writes its line of the access log. An
// unknown method or API is empty; an unknown beginning is zero.
func (g *Gateway) note(ctx *fasthttp.RequestCtx, method, api string, began time.Time) {
	r := &ctx.Response
	e := accesslog.Entry{
		Time: began, RequestID: r.Header.Peek("x-request-id"), Method: method, API: api, Status: r.StatusCode(),
		Bytes: int64(len(r.Body())), End: relay.Complete.String(),
		TTFT: -1, PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1,
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
