package resp

import (
	"github.com/cognitora/dataplane/internal/audit"
)

// Reasons of refusals.
const (
	reasonPassword = "wrong_password"
	reasonNone     = "no_password"
	reasonDenied   = "not_permitted"
)

// refuses records a client that is refused with an error reply. user is the name of a user that
// there is; "": the client has named none.
func (c *conn) refuses(reason, detail, user string) {
	log := c.server.o.Audit
	if log == nil {
		return
	}
	r := audit.Refusal{
		Reason: reason, Detail: detail, Key: user, Client: c.stream.conn.RemoteAddr().String(), Port: "resp",
	}
	if a := c.server.accounts[user]; a != nil && reason != reasonPassword {
		r.Tenant = a.Tenant
	}
	log.Refuse(r)
}

// userName is the name of the client's user; "": none.
func (c *conn) userName() string {
	if c.user == nil {
		return ""
	}
	return c.user.Name
}

// acted records a command that has cleared namespaces, or has tried to.
func (c *conn) acted(namespace string, err error) {
	log := c.server.o.Audit
	if log == nil {
		return
	}
	a := audit.Act{Action: c.command.name, Object: "namespace=" + namespace, By: c.userName(),
		Client: c.stream.conn.RemoteAddr().String(), Outcome: "ok",
		Limited: true}
	if err != nil {
		a.Outcome = err.Error()
	}
	log.Act(a)
}
