package router

import (
	"crypto/tls"
	"net"

	"github.com/cognitora/dataplane/internal/pki"
)

// ports are the addresses that the router listens on, and what it shows there.
type ports struct {
	serving, admin       net.Listener
	servingTLS, adminTLS *tls.Config   // nil: plain HTTP
	identity             *pki.Identity // that servingTLS shows
}

// close stops listening. A port that another process has taken over stays open there.
func (p *ports) close() {
	for _, l := range []net.Listener{p.serving, p.admin} {
		if l != nil {
			l.Close()
		}
	}
}

// open binds the listeners, or takes them over, and reads their certificates.
func (r *Router) open() (err error) {
	if err = r.claim(); err != nil {
		return err
	}
	if r.ports.serving, err = r.listen("router.listen", "--listen", r.config.Router.Listen); err != nil {
		return err
	}
	if r.ports.admin, err = r.listen("router.admin", "--admin", r.config.Router.Admin); err != nil {
		return err
	}
	if err = r.openTakeover(); err != nil {
		return err
	}
	if r.ports.servingTLS, r.ports.identity, err = r.config.TLS.server(); err != nil {
		return err
	}
	r.ports.adminTLS, err = r.config.AdminTLS.Config()
	return err
}

// Addr returns the address of the serving port.
func (r *Router) Addr() net.Addr { return r.ports.serving.Addr() }

// AdminAddr returns the address of the admin port.
func (r *Router) AdminAddr() net.Addr { return r.ports.admin.Addr() }
