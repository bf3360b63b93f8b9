package router

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// adminRoutes returns the handler of the admin port.
func (r *Router) adminRoutes() http.Handler {
	thresholds := r.thresholds.admin(r.callers.admins)
	routes := map[string]http.HandlerFunc{
		"GET /healthz":             func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") },
		"GET /readyz":              r.readyz,
		"GET /metrics":             r.metrics.Set.Handler().ServeHTTP,
		"GET /debug/fleet":         r.debugFleet,
		"POST /debug/route":        r.debugRoute,
		"GET /usage":               r.usage,
		"GET /busy_threshold":      thresholds,
		"POST /busy_threshold":     thresholds,
		"DELETE /busy_threshold":   thresholds,
		"POST /adapters/load":      r.changeAdapters(false),
		"POST /adapters/unload":    r.changeAdapters(true),
		"/v1/":                     r.notTheAPI,
		"GET /debug/pprof/":        pprof.Index,
		"GET /debug/pprof/cmdline": pprof.Cmdline,
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	}
	mux := http.NewServeMux()
	for pattern, handle := range routes {
		mux.HandleFunc(pattern, handle)
	}
	mux.HandleFunc("/", noRoute(routes))
	return r.callers.admins.guard(mux)
}

// noRoute answers a request that fits none of the routes with a list of them.
func noRoute(routes map[string]http.HandlerFunc) http.HandlerFunc {
	methods, paths := map[string]string{}, []string{}
	for _, pattern := range slices.Sorted(maps.Keys(routes)) {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			continue
		}
		if methods[path] != "" {
			methods[path] += ", " + method
			continue
		}
		methods[path] = method
		if !strings.HasPrefix(path, "/debug/pprof/") {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	list := strings.Join(append(paths, "/debug/pprof/"), ", ")
	return func(w http.ResponseWriter, req *http.Request) {
		if method := methods[req.URL.Path]; method != "" {
			w.Header().Set("Allow", method)
			writeError(w, &apierror.Error{
				Status: 405, Code: "method_not_allowed",
				Message: req.Method + " is not allowed for " + req.URL.Path + "; use " + method,
			})
			return
		}
		writeError(w, &apierror.Error{
			Status: 404, Code: "unknown_path", Message: "there is no such endpoint here; there are " + list,
		})
	}
}

// notTheAPI answers an OpenAI request with the address of the API.
func (r *Router) notTheAPI(w http.ResponseWriter, _ *http.Request) {
	writeError(w, &apierror.Error{
		Status: 404, Code: "unknown_path",
		Message: "this is the admin port; the API is at " + r.config.Router.Listen + " (router.listen)",
	})
}

// readyz answers 200 while the router can answer a request, otherwise 503. The body gives the
// reason, or names stale data.
func (r *Router) readyz(w http.ResponseWriter, _ *http.Request) {
	ok, detail := r.gateway.Ready(time.Now())
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	io.WriteString(w, cmp.Or(detail, "ready")+"\n")
}

// nodeView is a node with the data of the fleet and the prefix index.
type nodeView struct {
	fleet.NodeView
	Lifetime float64        `json:"learned_lifetime_s"` // how long the node's untouched blocks count as cached
	Speed    *leg.NodeSpeed `json:"speed,omitempty"`    // absent if mode predicted has nothing to say of it
}

// modelView is a model with the router's own data about it.
type modelView struct {
	fleet.ModelInfo
	TokenizerError string         `json:"tokenizer_error,omitempty"` // why the tokenizer of the settings is not used
	BusyThreshold  *busy.Document `json:"busy_threshold,omitempty"`  // set by POST /busy_threshold
}

func (r *Router) debugFleet(w http.ResponseWriter, _ *http.Request) {
	snap := r.known.fleet.Load()
	view := struct {
		fleet.View
		Nodes       []nodeView      `json:"nodes"`
		Models      []modelView     `json:"models"`
		IndexBlocks int             `json:"index_blocks"`
		Policy      *policy.InForce `json:"policy"` // of the models without a policy of their own
	}{
		Models: []modelView{}, View: snap.View(time.Now()), IndexBlocks: r.known.index.Len(),
		Policy: r.policies.inForce.Load(),
	}
	if p := r.policyProblem(); p != nil {
		view.Problems = append(slices.Clip(view.Problems), *p)
	}
	view.Problems = append(slices.Clip(view.Problems), r.callers.authProblems()...)
	view.Problems = append(slices.Clip(view.Problems), r.idleCascades(snap)...)
	view.Problems = append(view.Problems, r.known.cacheProblems(snap)...)
	view.Problems = append(view.Problems, r.sharedPrompts(snap)...)
	speeds := r.legs.Speeds(time.Now())
	for _, n := range view.View.Nodes {
		lifetime := 0.0
		if node := snap.Node(n.ID); node != nil {
			lifetime = r.known.lifetime(node).Seconds()
		}
		view.Nodes = append(view.Nodes, nodeView{n, lifetime, speeds[n.ID]})
	}
	failed := r.known.tokens.problems()
	for _, m := range view.View.Models {
		own := modelView{m, failed[m.Name], nil}
		if given := r.busy.Given(m.Name); !given.IsZero() {
			doc := busy.DocumentFor(m.Name, given)
			own.BusyThreshold = &doc
		}
		view.Models = append(view.Models, own)
	}
	writeJSON(w, http.StatusOK, view)
}

// idleCascades returns the models whose cascade this router does not use.
func (r *Router) idleCascades(snap *fleet.Snapshot) (all []fleet.Problem) {
	if r.config.Router.Cascade.Enabled {
		return nil
	}
	for _, m := range snap.Models() {
		if m.Settings != nil && len(m.Settings.Chain) > 0 {
			all = append(all, fleet.Problem{
				Subject: "model " + m.Name, Reason: "its cascade has no effect here: router.cascade.enabled is false",
			})
		}
	}
	return all
}

// debugRoute says where the OpenAI request in the body would go, and why. The query's api is chat
// (default), completions, responses, messages or embeddings; explainedFor reads whose request it
// is. The headers for the router count as those of a client that may steer.
func (r *Router) debugRoute(w http.ResponseWriter, req *http.Request) {
	api, ok := explainable[req.URL.Query().Get("api")]
	if !ok {
		writeError(w, &apierror.Error{Status: 400, Code: scan.CodeValue, Param: "api",
			Message: "api must be chat, completions, responses, messages or embeddings"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, int64(r.config.Limits.MaxBody)))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		writeError(w, &apierror.Error{
			Status: 413, Code: "body_too_large", Message: "the body is larger than limits.max_body",
		})
		return
	}
	if err != nil {
		return // the client is gone
	}
	asked := request.New()
	asked.API, asked.Received = api, time.Now()
	if fail := r.explainedFor(asked, req); fail != nil {
		writeError(w, fail)
		return
	}
	var own request.OwnHeaders
	for name, value := range pairs(req.Header) {
		own.Note(name, value)
	}
	asked.SetHead(request.Head{
		Method: []byte("POST"), Path: []byte(explainedPaths[api]), Session: own.Sessions.ID(), Pin: own.Pin,
	})
	asked.Own(body, nil)
	err = asked.ReadDeadline(own.Deadline)
	if err == nil {
		err = asked.Read(nil, nil)
	}
	if err == nil && own.Routing {
		err = asked.ReadHeaders(pairs(req.Header))
	}
	if err != nil {
		writeError(w, apierror.FromScan(err))
		return
	}
	var e *leg.Explanation
	q, fail := r.plans.First(asked)
	if fail == nil {
		e, fail = r.legs.Explain(asked, q)
	}
	if fail != nil {
		writeError(w, fail)
		return
	}
	writeJSON(w, http.StatusOK, e)
}

// pairs yields the names and values of headers.
func pairs(h http.Header) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for name, values := range h {
			for _, v := range values {
				if !yield([]byte(name), []byte(v)) {
					return
				}
			}
		}
	}
}

var explainable = map[string]scan.API{
	"": scan.Chat, "chat": scan.Chat, "completions": scan.Completions,
	"responses": scan.Responses, "messages": scan.Messages, "embeddings": scan.Embeddings,
}

// explainedPaths are the paths of the requests that debugRoute explains.
var explainedPaths = map[scan.API]string{
	scan.Chat: "/v1/chat/completions", scan.Completions: "/v1/completions", scan.Responses: "/v1/responses",
	scan.Messages: "/v1/messages", scan.Embeddings: "/v1/embeddings",
}

func writeError(w http.ResponseWriter, e *apierror.Error) {
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", auth.Challenge)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	w.Write(apierror.Body(nil, scan.Other, e))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.Encode(v)
}
