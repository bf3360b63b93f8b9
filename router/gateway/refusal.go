package gateway

import (
	"math"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// The codes of refusals by a limit. They are OpenAI's.
const (
	codeLimited = "rate_limit_exceeded"
	codeQuota   = "insufficient_quota"
)

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
	if r.Generates() && r.API != scan.Audio && r.Scan.MaxTokens == 0 {
		return "The request sets no maximum for its answer; set `max_tokens` (`max_output_tokens` for responses), " +
			"or shorten the prompt."
	}
	return "The input or output tokens must be reduced in order to run successfully."
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
