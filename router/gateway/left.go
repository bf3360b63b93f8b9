package gateway

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/scan"
)

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
