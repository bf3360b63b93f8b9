package router

import "net/http"

// AdminHandler returns the handler of the admin port.
func (r *Router) AdminHandler() http.Handler { return r.admin.Handler }
