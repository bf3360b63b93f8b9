package gateway

import (
	"bytes"

	"github.com/cognitora/dataplane/router/scan"
)

// route is what a path and method ask for.
type route uint8

const (
	routeUnknown route = iota // no such path
	routeFull                 // there is no room for the request's body
	routeMethod               // the path exists for other methods
	routeHealth               // GET /health
	routeModels               // GET /v1/models
	routeModel                // GET /v1/models/{id}
	routeInfer                // a request with a body that names a model
	routeStored               // a stored response: /v1/responses/{id}…
)

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

// changesEngine are the paths by which engines are changed for everybody: not for clients.
var changesEngine = map[string]bool{"/v1/load_lora_adapter": true, "/v1/unload_lora_adapter": true}

var (
	prefixModels    = []byte("/v1/models/")
	prefixResponses = []byte("/v1/responses/")
	prefixAudio     = []byte("/v1/audio/")
	prefixV1        = []byte("/v1/")
)

// find returns the route of a request and, for routeInfer, its API. rest is the part of the
// path behind a collection's name: a model's or a stored response's id.
func find(method, path []byte) (r route, api scan.API, rest []byte) {
	get, post := string(method) == "GET" || string(method) == "HEAD", string(method) == "POST"
	if api, ok := inferPaths[string(path)]; ok {
		return only(post, routeInfer), api, nil
	}
	switch {
	case string(path) == "/health":
		return only(get, routeHealth), scan.Other, nil
	case string(path) == "/v1/models":
		return only(get, routeModels), scan.Other, nil
	case bytes.HasPrefix(path, prefixModels) && len(path) > len(prefixModels):
		return only(get, routeModel), scan.Other, path[len(prefixModels):]
	case bytes.HasPrefix(path, prefixResponses) && len(path) > len(prefixResponses):
		return only(get || post || string(method) == "DELETE", routeStored), scan.Responses, path[len(prefixResponses):]
	case bytes.HasPrefix(path, prefixAudio):
		return only(post, routeInfer), scan.Audio, nil
	case bytes.HasPrefix(path, prefixV1) && !changesEngine[string(path)]:
		return only(post, routeInfer), scan.Other, nil
	}
	return routeUnknown, apiOf(path), nil
}

func only(ok bool, r route) route {
	if ok {
		return r
	}
	return routeMethod
}

// apiOf tells whose error envelope a path's clients read, also for paths that do not exist.
func apiOf(path []byte) scan.API {
	if api, ok := inferPaths[string(path)]; ok {
		return api
	}
	if bytes.HasPrefix(path, []byte("/v1/messages")) {
		return scan.Messages
	}
	return scan.Other
}
