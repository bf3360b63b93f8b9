package gateway

import (
	"cmp"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/tally"
)

// spent is what a call has used.
type spent struct {
	limits.Use
	cached    int64 // of Input
	estimated bool  // the engine did not report all tokens
}

// settle counts what the call has used in place of what it has reserved. If a bug makes the count
// panic, the call has used what it has reserved.
func (c *call) settle() {
	if !c.reserved.Held() && !c.tallied {
		return
	}
	s := spent{Use: c.most, estimated: c.counts}
	defer func() {
		received := c.request.Received
		now := received.Add(time.Since(received)) // half the price of time.Now
		c.reserved.Settle(s.Use, now)
		c.count(&s, now)
	}()
	s = c.used()
}

// count counts what the call has used for its key, tenant and model.
func (c *call) count(s *spent, now time.Time) {
	if !c.tallied || s.Requests == 0 {
		return
	}
	who := c.request.Who
	u := tally.Use{Requests: 1, Prompt: s.Input, Cached: s.cached, Completion: s.Output}
	if s.estimated {
		u.Estimated = 1
	}
	c.g.tally.Add(tally.Subject{Tenant: who.Tenant, Key: who.ID, Model: c.model}, u, now)
}

// used returns what the call has used.
//
// A call without an answer gets all back, unless its client has ended it after a node was asked.
// What nobody has counted stays as it was reserved, but the model's tokenizer may have counted the
// prompt since.
func (c *call) used() spent {
	a := c.task.Account(relay.Complete)
	guess := func(u limits.Use) spent { return spent{Use: u, estimated: u.Input+u.Output > 0} }
	c.model = cmp.Or(c.model, a.Model) // the fleet may have learned the name since
	if c.counts {
		c.most.Input = cmp.Or(a.Counted, c.most.Input)
	}
	switch {
	case c.stage != answering && (a.Attempts == 0 || c.request.Going() || c.request.Life.Ended() == request.Shutdown):
		return spent{}
	case c.stage != answering && c.streaming:
		return guess(limits.Use{Requests: 1, Input: c.most.Input})
	case c.stage != answering:
		return guess(c.most)
	case c.status >= 500:
		return spent{}
	case c.status >= 300 || !c.counts:
		return guess(limits.Use{Requests: 1})
	}
	s, u := spent{Use: c.most, cached: a.Usage.Cached}, c.reported(a.Usage)
	if u.HasPrompt {
		s.Input = u.Prompt
	}
	if u.HasCompletion || a.Events > 0 {
		s.Output = max(u.Completion, c.relayed(a.Events))
	}
	s.estimated = !u.HasPrompt && s.Input > 0 || !u.HasCompletion && s.Output > 0
	return s
}

// reported returns what the engine reports, with a count that it reports only as a part of the
// total. A total alone is the prompt's. If tokens are generated, they are what the total has above
// the estimate of the prompt. On a path that the router does not know, none are unless the engine
// says so.
func (c *call) reported(u usage.Counts) usage.Counts {
	switch {
	case !u.HasTotal && u.HasPrompt && c.request.API == scan.Other:
		u.HasCompletion = true
	case !u.HasTotal || u.HasPrompt && u.HasCompletion:
	case u.HasPrompt:
		u.Completion, u.HasCompletion = max(u.Total-u.Prompt, 0), true
	case u.HasCompletion:
		u.Prompt, u.HasPrompt = max(u.Total-u.Completion, 0), true
	case c.request.Generates() && c.request.API != scan.Other:
		u.Completion, u.HasCompletion = max(u.Total-c.most.Input, 0), true
	default:
		u.Prompt, u.HasPrompt, u.HasCompletion = u.Total, true, true
	}
	return u
}

// relayed returns the least number of tokens that a stream of this many events has. The events that
// every stream has for its beginning and its end do not count.
func (c *call) relayed(events int64) int64 {
	answers, _ := c.request.Scan.Answers()
	frame := times(3, answers)
	switch c.request.API {
	case scan.Messages:
		frame = 8
	case scan.Responses:
		frame = 12
	}
	return max(events-frame, 0)
}
