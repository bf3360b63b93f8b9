package gateway

import (
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/scan"
)

func TestRoutes(t *testing.T) {
	for request, want := range map[string]struct {
		route route
		api   scan.API
		rest  string
	}{
		"/v1/chat/completions":            {routeInfer, scan.Chat, ""},
		"/v1/models":                      {routeModels, scan.Other, ""},
		"/v1/models/org/small":            {routeModel, scan.Other, "org/small"},
		"/v1/models/":                     {routeUnknown, scan.Other, ""},
		"/v1/responses/id/x":              {routeStored, scan.Responses, "id/x"},
		"/v1/responses/compact":           {routeStored, scan.Responses, "compact"}, // any word may be an id
		"DELETE /v1/responses/id":         {routeStored, scan.Responses, "id"},
		"POST /v1/responses/id/cancel":    {routeStored, scan.Responses, "id/cancel"},
		"POST /v1/responses/id/cancel/x":  {routePass, scan.Other, ""},
		"POST /v1/responses/input_tokens": {routePass, scan.Other, ""},
		"POST /v1/responses/compact":      {routePass, scan.Other, ""},
		"POST /v1/responses/":             {routeUnknown, scan.Other, ""},
		"/v1/audio/speech":                {routeInfer, scan.Audio, ""},
		"/v1/unheard-of":                  {routePass, scan.Other, ""},
		"/v1/unheard-of/":                 {routePass, scan.Other, ""},
		"POST /v1/chat/completions/batch": {routePass, scan.Other, ""},
		"POST /v1/chat/completion":        {routeUnknown, scan.Other, ""},
		"POST /v1/Chat/Completions":       {routeUnknown, scan.Other, ""},
		"POST /v1/embedings":              {routeUnknown, scan.Other, ""},
		"/v1/chat/completions/":           {routeUnknown, scan.Other, ""},
		"/v1/messages/":                   {routeUnknown, scan.Messages, ""},
		"/v1/load_lora_adapter":           {routeUnknown, scan.Other, ""},
		"/":                               {routeUnknown, scan.Other, ""},
		"*":                               {routeUnknown, scan.Other, ""},
	} {
		method, path, named := strings.Cut(request, " ")
		if !named {
			method, path = "GET", request
		}
		r, api, rest := find([]byte(method), []byte(path))
		if r != want.route || api != want.api || string(rest) != want.rest {
			t.Errorf("%s: %v %v %q", request, r, api, rest)
		}
	}
}

func TestRoutingAllocatesNothing(t *testing.T) {
	path, post := []byte("/v1/chat/completions"), []byte("POST")
	var h fasthttp.RequestHeader
	h.SetContentLength(-1)
	if n := testing.AllocsPerRun(100, func() {
		if r, _, _ := find(post, path); !r.takes(post) || faultOf(&h) != nil {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTemplateOutlivesTheRequest checks the routes in traces, and that they are no borrowed memory.
func TestTemplateOutlivesTheRequest(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions": "/v1/chat/completions", "/rerank": "/rerank",
		"/v1/audio/speech": "/v1/audio/{action}", "/v1/other": "/v1/{path}",
	} {
		memory := []byte(path)
		kind, _, _ := find([]byte("POST"), memory)
		got := kind.template(stringOf(memory))
		clear(memory)
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if kind, _, _ := find([]byte("GET"), []byte("/v1/responses/r-1")); kind.template("") != "/v1/responses/{id}" {
		t.Error("the path of a stored response has its id")
	}
}
