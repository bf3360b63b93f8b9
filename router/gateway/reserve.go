package gateway

import (
	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// reserve takes what the request may use at most from the limits of its key, tenant and model. With
// an error nothing is taken. counts says that the request uses tokens.
func (c *call) reserve(counts bool) *apierror.Error {
	r, g := c.request, c.g
	if r.Who.Limit == nil && !g.book.Limits() && g.tally == nil {
		return nil
	}
	c.model = limitedModel(g, r)
	book(&c.reserved, r.Who, g.book, c.model)
	if !c.reserved.Limited() && g.tally == nil {
		return nil
	}
	if err := c.estimate(counts); err != nil {
		return err
	}
	no, ok := c.reserved.Reserve(c.most, r.Received)
	if ok && g.shared != nil {
		var away bool
		if no, away, ok = c.reserved.Share(g.shared, r.Received); away {
			return errUncounted
		}
	}
	if ok {
		c.tallied = g.tally != nil
		return nil
	}
	g.metrics.Limited.WithLabelValues(no.Setting, no.Of.String()).Inc()
	return limitError(&no, r, c.model)
}

// estimate finds what the request may use at most. An unclear number of answers is an error only
// if a limit counts their tokens.
func (c *call) estimate(counts bool) *apierror.Error {
	r, g := c.request, c.g
	c.most.Requests = 1
	if c.counts = counts && (c.reserved.CountsTokens() || g.tally != nil); !c.counts {
		return nil
	}
	r.Counted = true
	answers, ok := r.Scan.Answers()
	if !ok && c.reserved.CountsTokens() {
		return errAnswers
	}
	c.most.Input = promptTokens(r)
	switch {
	case r.API == scan.Audio && r.Scan.Form():
		c.most.Output = int64(len(r.Body()) / bytesPerWord)
		c.most = c.reserved.Within(c.most) // WAV has far more bytes for each token
	case r.Generates() && r.API != scan.Audio:
		most := max(g.book.Output(c.model, r.Scan.MaxTokens), g.book.Output(c.model, r.Scan.MostTokens()))
		c.most.Output = times(answers, most)
	}
	return nil
}

// book adds the subjects of a principal's request for a model to r.
func book(r *limits.Reservation, who *trust.Principal, b *limits.Book, model string) {
	r.Add(who.Limits())
	b.Add(r, who.Tenant, model)
}

// limitedModel returns the canonical name of the request's model; "" if it is unknown to the
// client, which gets 404 then.
func limitedModel(g *Gateway, r *request.Request) string {
	view, err := leg.Resolve(g.fleet.Load(), r.Scan.Model)
	if err != nil || !r.Who.Uses(view.Name) && !r.Who.Uses(stringOf(r.Scan.Model)) || g.plans.Hides(view, r.Who) {
		return ""
	}
	return view.Name
}

var errUncounted = &apierror.Error{
	Status: fasthttp.StatusServiceUnavailable, Code: "limits_unavailable", RetryAfterSeconds: 1,
	Message: "the router cannot check the limits of this request now: its Redis does not answer " +
		"(ratelimit.on_failure is closed)",
}

var errAnswers = &apierror.Error{
	Status: 400, Code: scan.CodeType, Param: "n",
	Message: "`n`, `best_of` and `n_cmpl` must be whole numbers here, since the tokens of all answers count " +
		"towards a limit",
}

// usesTokens says whether requests of an API use a model, and not only its tokenizer.
func usesTokens(api scan.API) bool {
	return api != scan.CountTokens && api != scan.Tokenize && api != scan.Detokenize
}

// Whisper has 50 tokens for each second of a recording, and people say about 5 in it. An MP3 of 128
// kbit/s has 16 kB.
const (
	bytesPerSound = 320
	bytesPerWord  = 3200
)

// promptTokens estimates the tokens of the request's prompt: its token ids, or else one for each
// four bytes of text, and those that a template adds to its parts.
func promptTokens(r *request.Request) int64 {
	const (
		bytesPerToken = 4
		ofMedia       = 1024 // an image
	)
	s := r.Scan
	switch r.API {
	case scan.Audio, scan.Other:
		if r.API == scan.Audio && s.Form() {
			return int64(len(r.Body()) / bytesPerSound)
		}
		return int64(len(r.Body()) / bytesPerToken)
	}
	n, bytes := s.Framing()
	n += int64(s.Media) * ofMedia
	bytes += int64(s.Skipped + s.Omitted)
	if len(s.Tokens) > 0 {
		return n + int64(len(s.Tokens)) + bytes/bytesPerToken
	}
	return n + (int64(len(s.Text))+bytes+bytesPerToken-1)/bytesPerToken
}

// times returns the product of two numbers that are not negative, at most limits.MostUse.
func times(a, b int64) int64 {
	if a > 0 && b > limits.MostUse/a {
		return limits.MostUse
	}
	return min(a*b, limits.MostUse)
}
