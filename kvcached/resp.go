package kvcached

import (
	"crypto/tls"
	"fmt"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/resp"
)

// prepareRESP serves engines that use the Redis protocol.
func (d *Daemon) prepareRESP() error {
	c := &d.config.RESP
	if c.Listen == "" {
		return nil
	}
	users, err := c.users()
	if err != nil {
		return err
	}
	o := resp.Options{
		Store: keyed{d.blocks("resp")}, Purge: d.purge(), Users: users, Memory: d.memory, Stall: c.Stall.Std(),
		Logger: d.log, Audit: d.audit,
	}
	if o.TLS, err = d.config.serverTLS(c.TLS); err != nil {
		return err
	}
	srv, err := resp.New(o)
	if err != nil {
		return err
	}
	l, where, err := openFor("resp.listen", "--resp", c.Listen, d.config.Daemon.Group)
	if err != nil {
		return err
	}
	d.metrics.resp = srv
	d.add(&part{
		name: "resp", where: where, what: "RESP2 and RESP3, as redis",
		serve: func() error { return srv.Serve(l) }, finish: srv.Shutdown,
		close: func() { _ = l.Close(); _ = srv.Close() },
	})
	return nil
}

func (c *RESPConfig) users() ([]resp.User, error) {
	var users []resp.User
	for i, u := range c.Users {
		password, err := secret(fmt.Sprintf("resp.users[%d].password_file", i), u.PasswordFile)
		if err != nil {
			return nil, err
		}
		users = append(users, resp.User{Name: u.Name, Password: password, Tenant: u.Tenant, ReadOnly: u.ReadOnly})
	}
	return users, nil
}

// serverTLS is the TLS configuration of a listener for engines; nil: plain TCP.
func (c *Config) serverTLS(on bool) (*tls.Config, error) {
	if !on {
		return nil, nil
	}
	id, err := pki.Load(pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key})
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return id.Server(false), nil
}

// memory is the memory in INFO: the used bytes of the arena, and its size.
func (d *Daemon) memory() (used, limit int64) {
	u := d.store.Stats().RAM
	return u.Size - u.Free, u.Size
}
