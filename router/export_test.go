package router

import (
	"net"
	"net/http"
)

// Addr returns the address of the serving port.
func (r *Router) Addr() net.Addr { return r.serving.Addr() }

// AdminHandler returns the handler of the admin port.
func (r *Router) AdminHandler() http.Handler { return r.admin.Handler }

// AdminAddr returns the address of the admin port.
func (r *Router) AdminAddr() net.Addr { return r.adminAt.Addr() }
