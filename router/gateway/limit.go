package gateway

import (
	"cmp"
	"math"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/tally"
	"github.com/cognitora/dataplane/router/trust"
)

// The codes of refusals by a limit. They are OpenAI's.
const (
	codeLimited = "rate_limit_exceeded"
	codeQuota   = "insufficient_quota"
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
	if r.Generates() && r.API != scan.Audio {
		c.most.Output = times(answers, g.book.Output(c.model, r.Scan.MostTokens()))
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
	if err != nil || !r.Who.Uses(view.Name) && !r.Who.Uses(stringOf(r.Scan.Model)) {
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
	Message: "`n` and `best_of` must be whole numbers here, since the tokens of all answers count towards a limit",
}

// usesTokens says whether requests of an API use a model, and not only its tokenizer.
func usesTokens(api scan.API) bool {
	return api != scan.CountTokens && api != scan.Tokenize && api != scan.Detokenize
}

// promptTokens estimates the tokens of the request's prompt: its token ids, or else one for each
// four bytes of text, and those that a template adds to its parts.
func promptTokens(r *request.Request) int64 {
	const (
		bytesPerToken = 4
		ofMedia       = 1024 // an image
	)
	s := r.Scan
	switch r.API {
	case scan.Audio:
		return 0 // nobody knows before the engine tells
	case scan.Other:
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
		now := time.Now()
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
// What nobody has counted stays as it was reserved. The model's tokenizer may have counted the
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
	s, u := spent{Use: c.most, cached: a.Usage.Cached}, &a.Usage
	if u.HasPrompt {
		s.Input = u.Prompt
	}
	if u.HasCompletion || a.Events > 0 {
		s.Output = max(u.Completion, c.relayed(a.Events))
	}
	s.estimated = !u.HasPrompt && s.Input > 0 || !u.HasCompletion && s.Output > 0
	return s
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

// limitError is the error of a request that a limit refuses. Its texts are OpenAI's, as clients
// parse them.
func limitError(no *limits.Refusal, r *request.Request, model string) *apierror.Error {
	e := &apierror.Error{Status: fasthttp.StatusTooManyRequests, Code: codeLimited, Type: "tokens"}
	if no.Kind == limits.Requests || no.Kind == limits.InFlight {
		e.Type = "requests"
	}
	figures := whose(no, r, model) + " on " + no.Kind.String() + period(no) + " (" + no.Setting + "): Limit " +
		decimal(no.Limit)
	asked := ", Requested " + decimal(no.Asked)
	switch {
	case no.Never():
		e.NoRetry = true
		e.Message = "Request too large for " + figures + asked + ". " + smaller(r)
		return e
	case no.Kind == limits.Budget:
		e.Type, e.Code, e.NoRetry = codeQuota, codeQuota, true
		e.Message = "You exceeded the quota of " + figures + ", Used " + decimal(no.Used) + asked +
			". It begins anew in " + string(appendDuration(nil, no.Wait)) + "."
	default:
		e.Message = "Rate limit reached for " + figures + ", Used " + decimal(no.Used) + asked +
			". Please try again in " + string(appendDuration(nil, no.Wait)) + "."
	}
	e.RetryAfterSeconds = int(math.Ceil(no.Wait.Seconds()))
	if e.NoRetry = e.NoRetry || no.Wait > longestRetry; !e.NoRetry {
		e.RetryAfterMillis = int((no.Wait + time.Millisecond - 1) / time.Millisecond)
	}
	return e
}

// longestRetry is the longest wait that the SDKs of OpenAI and Anthropic take from an answer. They
// would come back much earlier after a longer one.
const longestRetry = time.Minute

// whose names the one whose limit it is.
func whose(no *limits.Refusal, r *request.Request, model string) string {
	tenant := "the tenant " + r.Who.Tenant
	switch no.Of {
	case limits.OfTenant:
		return tenant
	case limits.OfTenantModel:
		return tenant + " and the model " + model
	case limits.OfModel:
		return "the model " + model
	}
	return "this API key"
}

func period(no *limits.Refusal) string {
	switch {
	case no.Kind == limits.Budget:
		return " per month"
	case no.Window == time.Minute:
		return " per min"
	case no.Window > 0:
		return " per day"
	}
	return ""
}

// smaller says what makes a request fit.
func smaller(r *request.Request) string {
	if r.Generates() && r.Scan.MostTokens() == 0 {
		return "The request sets no maximum for its answer; set `max_tokens` (`max_output_tokens` for responses), " +
			"or shorten the prompt."
	}
	return "The input or output tokens must be reduced in order to run successfully."
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// appendDuration appends d as OpenAI writes durations: 12ms, 18.642s, 6m0s, 1h5m0s.
func appendDuration(b []byte, d time.Duration) []byte {
	ms := int64(max(d+time.Millisecond-1, 0) / time.Millisecond)
	if ms > 0 && ms < 1000 {
		return append(strconv.AppendInt(b, ms, 10), "ms"...)
	}
	hours, minutes, seconds, rest := ms/3600000, ms/60000%60, ms/1000%60, ms%1000
	if hours > 0 {
		b = append(strconv.AppendInt(b, hours, 10), 'h')
	}
	if hours > 0 || minutes > 0 {
		b = append(strconv.AppendInt(b, minutes, 10), 'm')
	}
	b = strconv.AppendInt(b, seconds, 10)
	if rest > 0 {
		b = append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return append(b, 's')
}

// limitNames are the headers about what is left of one kind's limits, as the server spells them.
type limitNames struct {
	kind                    limits.Kind
	limit, remaining, reset []byte
}

func openAI(kind limits.Kind, name string) limitNames {
	return limitNames{
		kind, []byte("X-Ratelimit-Limit-" + name), []byte("X-Ratelimit-Remaining-" + name),
		[]byte("X-Ratelimit-Reset-" + name),
	}
}

func anthropic(kind limits.Kind, name string) limitNames {
	name = "Anthropic-Ratelimit-" + name
	return limitNames{kind, []byte(name + "-Limit"), []byte(name + "-Remaining"), []byte(name + "-Reset")}
}

var (
	openAILimits    = []limitNames{openAI(limits.Requests, "Requests"), openAI(limits.Tokens, "Tokens")}
	anthropicLimits = []limitNames{
		anthropic(limits.Requests, "Requests"), anthropic(limits.Tokens, "Tokens"),
		anthropic(limits.Input, "Input-Tokens"), anthropic(limits.Output, "Output-Tokens"),
	}
)

// describeLimits adds the headers about what is left of the limits. describeLimits does not
// allocate.
func (c *call) describeLimits(h *fasthttp.ResponseHeader) {
	if !c.reserved.Limited() {
		return
	}
	all, date := openAILimits, false
	if api := c.request.API; api == scan.Messages || api == scan.CountTokens {
		all, date = anthropicLimits, true
	}
	now := c.request.Received
	var text [48]byte
	for i := range all {
		names := &all[i]
		left, ok := c.reserved.Left(names.kind, now)
		if !ok {
			continue
		}
		h.SetCanonical(names.limit, strconv.AppendInt(text[:0], left.Limit, 10))
		h.SetCanonical(names.remaining, strconv.AppendInt(text[:0], left.Remaining, 10))
		if date {
			h.SetCanonical(names.reset, now.Add(left.Reset+time.Second-1).UTC().AppendFormat(text[:0], time.RFC3339))
		} else {
			h.SetCanonical(names.reset, appendDuration(text[:0], left.Reset))
		}
	}
}
