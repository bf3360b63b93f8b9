package router

import "net/http"

// AdminHandler returns the handler of the admin port.
func (r *Router) AdminHandler() http.Handler { return r.admin.Handler }

// Examine checks the files that the settings of traces name.
func (t *TraceConfig) Examine() error { return t.examine() }

// Connections returns the connections to the provider.
func (o *OIDCConfig) Connections() (http.RoundTripper, error) { return o.transport() }
