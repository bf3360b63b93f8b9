package kvcached

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// lanes tells gRPC over which lanes blocks come from other caches.
type lanes struct{ d *Daemon }

// resolveWithin bounds the lookup of a host's addresses. The lookup finds the host of each grant.
const resolveWithin = time.Second

// Paths returns the paths to all other caches, sorted by id.
func (l lanes) Paths(ctx context.Context) (out []rpc.Path, unknown string) {
	view := l.d.view.Load()
	if view == nil {
		return nil, ""
	}
	if !view.Known() {
		unknown = unnamed
	}
	spoken := map[transport.Target]transport.PeerStatus{}
	for _, s := range l.d.pool.Status() {
		spoken[s.Target] = s
	}
	var grants []transport.Granted
	if l.d.metrics.peers != nil {
		grants = l.d.metrics.peers.Granted()
	}
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	for _, m := range view.Others() {
		p := rpc.Path{Peer: m.ID, Address: m.Address, Wanted: string(l.d.config.Fleet.wanted(m.ID)),
			Silent: view.Silent(m.ID)}
		if s, there := spoken[m.Target()]; there {
			use(&p, &s)
		} else {
			p.WhyNotRDMA = notAsked
		}
		if why := l.d.config.whyNoRDMA(m.ID); why != "" {
			p.WhyNotRDMA = why
		}
		if !p.Silent.IsZero() {
			p.Lane = ""
		}
		p.Granted = granted(ctx, &m, grants)
		out = append(out, p)
	}
	return out, unknown
}

// notAsked is the reason why RDMA to a cache is not used before the first request.
const notAsked = "nothing was asked of it yet"

// whyNoRDMA says which setting rules out RDMA reads from a cache; empty: RDMA is allowed.
func (c *Config) whyNoRDMA(cache string) string {
	lane, field := c.Fleet.Lane, "fleet.lane"
	for _, p := range c.Fleet.Peers {
		if p.Cache == cache {
			lane, field = p.Lane, "lane of its [[fleet.peers]]"
		}
	}
	switch {
	case lane == string(transport.QUIC), lane == string(transport.TLS):
		return field + " is " + lane
	case len(c.RDMA.Devices) > 0:
		return ""
	}
	return noDevices()
}

// use copies the pool's status of a cache into its path.
func use(p *rpc.Path, s *transport.PeerStatus) {
	p.Lane, p.WhyNotRDMA, p.Pairs, p.Held, p.Error, p.ErrorAt = string(s.Lane), s.Why, len(s.Cards), int(s.Grants),
		s.Error, s.At
	if s.RDMA {
		p.Lane, p.WhyNotRDMA = string(transport.RDMA), ""
	} else if p.WhyNotRDMA == "" {
		p.WhyNotRDMA = notAsked
	}
	for _, c := range s.Carried {
		if c.Pulls+c.Puts+c.Failed+c.Fell > 0 || c.Error != "" {
			p.Lanes = append(p.Lanes, rpc.Use{Lane: string(c.Lane), Operations: c.Pulls + c.Puts,
				Bytes: c.Received + c.Sent, Errors: c.Failed, Fallbacks: c.Fell,
				Error: c.Error, ErrorAt: c.At})
		}
	}
}

// granted is the number of blocks that a cache may read from here now. Grants are matched to the
// cache by address.
func granted(ctx context.Context, m *fleet.Member, grants []transport.Granted) (blocks int) {
	host, _, err := net.SplitHostPort(m.Address)
	if err != nil || len(grants) == 0 {
		return 0
	}
	addresses := []string{host}
	if _, err := netip.ParseAddr(host); err != nil {
		addresses, _ = net.DefaultResolver.LookupHost(ctx, host)
	}
	for _, l := range grants {
		if slices.Contains(addresses, l.Host) {
			blocks += l.Blocks
		}
	}
	return blocks
}

// Devices returns the state of the devices in rdma.devices.
func (l lanes) Devices() (out []rpc.Device) {
	for _, c := range l.d.rails.Cards() {
		out = append(out, rpc.Device{Name: c.Name, Open: c.Address != "", Released: c.Kept, Why: c.Why})
	}
	return out
}

// Release is transport.Rails.Release.
func (l lanes) Release(ctx context.Context, device string) (pairs int, open bool, err error) {
	if l.d.rails == nil {
		return 0, false, rpc.ErrNoDevice
	}
	if l.d.pool != nil {
		for _, s := range l.d.pool.Status() {
			pairs += times(s.Cards, device)
		}
	}
	if l.d.metrics.peers != nil {
		for _, s := range l.d.metrics.peers.Granted() {
			pairs += times(s.Cards, device)
		}
	}
	open = slices.Contains(l.d.rails.Open(), device)
	err = l.d.rails.Release(ctx, device)
	if errors.Is(err, transport.ErrNoCard) {
		return 0, false, rpc.ErrNoDevice
	}
	return pairs, open, err
}

func times(all []string, name string) (n int) {
	for _, one := range all {
		if one == name {
			n++
		}
	}
	return n
}
