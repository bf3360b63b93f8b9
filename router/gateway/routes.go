package gateway

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// route is the kind of resource that a path names.
type route uint8

const (
	routeUnknown    route = iota // no such path
	routeHealth                  // /health
	routeModels                  // /v1/models
	routeModel                   // /v1/models/{id}
	routeInfer                   // a request with a body that names a model
	routePass                    // below /v1/ and unknown to the router; a node may know the path
	routeStored                  // a stored response: /v1/responses/{id}…
	routeThresholds              // /busy_threshold
)

// methods lists the route's methods as an Allow header does.
func (r route) methods() string {
	switch r {
	case routeHealth, routeModels, routeModel:
		return "GET, HEAD"
	case routeInfer, routePass:
		return "POST"
	case routeStored:
		return "GET, HEAD, POST, DELETE"
	case routeThresholds:
		return "GET, POST, DELETE"
	}
	return ""
}

// template returns a path of the route for traces, without the ids in it. The result does not share
// memory with path, which ends with the request.
func (r route) template(path string) string {
	switch r {
	case routeInfer:
		if _, exact := inferPaths[path]; exact {
			return strings.Clone(path)
		}
		return "/v1/audio/{action}"
	case routePass:
		return "/v1/{path}"
	case routeStored:
		return "/v1/responses/{id}"
	}
	return ""
}

// name returns the endpoint's name in the access log, metrics and the audit log. api is that of the
// request.
func (r route) name(api scan.API) string {
	switch r {
	case routeHealth:
		return "health"
	case routeModels, routeModel:
		return "models"
	case routeThresholds:
		return "busy_threshold"
	}
	return api.String()
}

// scope returns the right that a request of the route needs.
func (r route) scope() trust.Scopes {
	switch r {
	case routeHealth:
		return 0
	case routeModels, routeModel:
		return trust.Models
	case routeThresholds:
		return trust.Pin
	}
	return trust.Inference
}

func (r route) takes(method []byte) bool {
	for name := range strings.SplitSeq(r.methods(), ", ") {
		if name == string(method) {
			return true
		}
	}
	return false
}

var inferPaths = map[string]scan.API{
	"/v1/chat/completions":      scan.Chat,
	"/v1/completions":           scan.Completions,
	"/v1/embeddings":            scan.Embeddings,
	"/v1/responses":             scan.Responses,
	"/v1/messages":              scan.Messages,
	"/v1/messages/count_tokens": scan.CountTokens,
	"/v1/rerank":                scan.Rerank,
	"/v2/rerank":                scan.Rerank,
	"/rerank":                   scan.Rerank,
	"/v1/score":                 scan.Score,
	"/score":                    scan.Score,
	"/tokenize":                 scan.Tokenize,
	"/detokenize":               scan.Detokenize,
}

const (
	pathHealth     = "/health"
	pathThresholds = "/busy_threshold"
)

var (
	prefixModels    = []byte("/v1/models/")
	prefixResponses = []byte("/v1/responses/")
	prefixAudio     = []byte("/v1/audio/")
	prefixV1        = []byte("/v1/")
)

// find returns the route of a request and, for a request with a body, its API. rest is the id
// behind a collection's name: the id of a model or of a stored response.
func find(method, path []byte) (r route, api scan.API, rest []byte) {
	if api, ok := inferPaths[string(path)]; ok {
		return routeInfer, api, nil
	}
	switch {
	case string(path) == pathHealth:
		return routeHealth, scan.Other, nil
	case string(path) == pathThresholds:
		return routeThresholds, scan.Other, nil
	case string(path) == "/v1/models":
		return routeModels, scan.Other, nil
	case bytes.HasPrefix(path, prefixModels) && len(path) > len(prefixModels):
		return routeModel, scan.Other, path[len(prefixModels):]
	case isStored(method, path):
		return routeStored, scan.Responses, path[len(prefixResponses):]
	case bytes.HasPrefix(path, prefixAudio):
		return routeInfer, scan.Audio, nil
	case bytes.HasPrefix(path, prefixV1) && !intake.ChangesEngine(path) && meantBy(path) == "":
		return routePass, scan.Other, nil
	}
	return routeUnknown, apiOf(path), nil
}

// isStored says whether a request is about a stored response. POST .../cancel is the only POST
// about a stored response. Other POSTs below /v1/responses/, such as input_tokens and compact, are
// endpoints of their own.
func isStored(method, path []byte) bool {
	rest, below := bytes.CutPrefix(path, prefixResponses)
	if !below || string(method) != "POST" {
		return below && len(rest) > 0
	}
	id, verb, _ := bytes.Cut(rest, []byte("/"))
	return len(id) > 0 && string(verb) == "cancel"
}

// endpoints are the paths that errors suggest.
var endpoints = append(slices.Sorted(maps.Keys(inferPaths)), "/v1/models", "/health")

// onAdminPort says whether a path exists on the router's admin port.
func onAdminPort(path []byte) bool {
	switch string(path) {
	case "/metrics", "/readyz", pathThresholds:
		return true
	}
	return bytes.HasPrefix(path, []byte("/debug/")) || bytes.HasPrefix(path, []byte("/adapters/"))
}

// meantBy returns the endpoint that an unknown path is probably meant for, or "". meantBy
// recognizes a trailing slash, a missing or doubled /v1, capitals, and one wrong letter.
func meantBy(path []byte) string {
	bare := strings.TrimRight(string(path), "/")
	for _, guess := range []string{bare, "/v1" + bare, strings.TrimPrefix(bare, "/v1")} {
		for _, known := range endpoints {
			if strings.EqualFold(guess, known) || oneEdit(guess, known) {
				return known
			}
		}
	}
	return ""
}

// oneEdit says whether a becomes b by adding, removing or changing one letter.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	if len(a) < len(b) {
		return a[same:] == b[same+1:]
	}
	return same < len(a) && a[same+1:] == b[same+1:]
}

// apiOf returns the API that gives the errors of a path their envelope. The path need not exist.
func apiOf(path []byte) scan.API {
	if api, ok := inferPaths[string(path)]; ok {
		return api
	}
	if bytes.HasPrefix(path, []byte("/v1/messages")) {
		return scan.Messages
	}
	return scan.Other
}
