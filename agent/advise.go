package agent

import (
	"fmt"
	"net"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
)

// Advise returns warnings about valid settings that do less than they seem to.
func (c *Config) Advise() (notes []string) {
	units := c.units()
	for _, u := range units {
		if note := u.adviseHandover(); note != "" {
			notes = append(notes, note)
		}
	}
	return append(notes, c.adviseCertificate(units)...)
}

// adviseCertificate warns of a certificate for this host alone, once.
func (c *Config) adviseCertificate(units []*unit) []string {
	for _, l := range c.places(units) {
		if l.field == "agent.admin" || listen.Loopback(l.address) {
			continue
		}
		if note := pki.AdviseHosts("tls.cert", c.TLS.Cert, l.field, l.address); note != "" {
			return []string{note}
		}
	}
	return nil
}

// adviseHandover warns if other hosts reach the node, and the engines there that decode may not
// reach what its engine says about the blocks; "": there is nothing to warn of. The agent relays
// requests, and no blocks.
func (u *unit) adviseHandover() string {
	connector, bootstrap := u.Engine.Handover(u.Role)
	if connector == "" || u.Role == string(cluster.RoleDecode) || !u.reachable() {
		return ""
	}
	if host, _, _ := net.SplitHostPort(bootstrap); host != "" && listen.Loopback(bootstrap) {
		return fmt.Sprintf("%s: %q is of this host alone: engines of other hosts that decode cannot fetch blocks of this one",
			u.name("bootstrap"), bootstrap)
	}
	if key, why := u.Engine.HandoverHidden(connector); key != "" {
		return fmt.Sprintf("%s: %s: engines of other hosts that decode then cannot fetch blocks of this one", u.name(key), why)
	}
	return ""
}

// reachable says whether other hosts reach the node's front.
func (u *unit) reachable() bool {
	if u.Advertise == "" {
		return !listen.Loopback(u.Listen)
	}
	a, err := address.Parse(u.Advertise)
	return err == nil && a.Network == "tcp" && !listen.Loopback(a.Addr)
}
