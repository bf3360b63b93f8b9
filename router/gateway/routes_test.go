package gateway

import (
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/scan"
)

func TestRoutes(t *testing.T) {
	for path, want := range map[string]struct {
		route route
		api   scan.API
		rest  string
	}{
		"/v1/chat/completions":  {routeInfer, scan.Chat, ""},
		"/v1/models":            {routeModels, scan.Other, ""},
		"/v1/models/org/small":  {routeModel, scan.Other, "org/small"},
		"/v1/models/":           {routeUnknown, scan.Other, ""},
		"/v1/responses/id/x":    {routeStored, scan.Responses, "id/x"},
		"/v1/audio/speech":      {routeInfer, scan.Audio, ""},
		"/v1/unheard-of":        {routePass, scan.Other, ""},
		"/v1/unheard-of/":       {routePass, scan.Other, ""},
		"/v1/chat/completions/": {routeUnknown, scan.Other, ""},
		"/v1/messages/":         {routeUnknown, scan.Messages, ""},
		"/v1/load_lora_adapter": {routeUnknown, scan.Other, ""},
		"/":                     {routeUnknown, scan.Other, ""},
		"*":                     {routeUnknown, scan.Other, ""},
	} {
		r, api, rest := find([]byte(path))
		if r != want.route || api != want.api || string(rest) != want.rest {
			t.Errorf("%s: %v %v %q", path, r, api, rest)
		}
	}
}

func TestRoutingAllocatesNothing(t *testing.T) {
	path, post := []byte("/v1/chat/completions"), []byte("POST")
	var h fasthttp.RequestHeader
	h.SetContentLength(-1)
	if n := testing.AllocsPerRun(100, func() {
		if r, _, _ := find(path); !r.takes(post) || faultOf(&h) != nil {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
