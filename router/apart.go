package router

import (
	"net/http"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// sharedPrompts says of which nodes nobody knows that their engines keep the cached prompts of
// clients apart, and of which nodes the cache is off for that.
func (r *Router) sharedPrompts(snap *fleet.Snapshot) (all []fleet.Problem) {
	if r.callers.salts == nil {
		return nil
	}
	for _, n := range snap.Nodes {
		why := ""
		switch n.KeepsApart() {
		case fleet.BySalt, fleet.BySaltOfChats:
			continue
		case fleet.WithoutCache:
			why = "its engine reuses no prompt, because auth.isolation is " + r.config.Auth.Isolation +
				" and llama.cpp knows no cache_salt; give each tenant an engine of its own, or use vLLM or SGLang"
		case fleet.Unproven:
			why = "clients may learn from its answers' times what others have asked: its engine's kind is unknown, and " +
				"whether it obeys the cache_salt of auth.isolation too; turn its prefix cache off, unless it does"
		}
		all = append(all, fleet.Problem{Subject: n.ID, Reason: why})
	}
	return all
}

// explainedFor makes a request to explain that of a client: of a key of the query's tenant, or of
// the key with the query's id. Without them it is the router's own, which shares no cached prompt
// with any client if auth.isolation is on.
func (r *Router) explainedFor(asked *request.Request, req *http.Request) *apierror.Error {
	tenant, id := req.URL.Query().Get("tenant"), req.URL.Query().Get("key")
	switch {
	case id != "":
		if r.callers.keys != nil {
			asked.Who = r.callers.keys.Set.Of(id)
		}
		if asked.Who == nil {
			return &apierror.Error{Status: 400, Code: scan.CodeValue, Param: "key",
				Message: "the router knows no API key with this id; cgn-ctl key list lists the ids"}
		}
	case tenant != "":
		asked.Who = &trust.Principal{Tenant: tenant}
	}
	asked.Salts = r.callers.salts
	return nil
}
