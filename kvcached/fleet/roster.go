package fleet

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// Member is a host of the fleet.
type Member struct {
	ID       string // cache id
	Instance string // new at each start of the host's daemon
	Address  string // host:port of the member's cgn-kv/1 port
	Name     string // name that the host's certificate must have; empty: any name of a cache
	Lane     transport.Lane
	Cards    transport.OneSided // whether this host reads blocks from the member's memory
}

// roster is the list of the fleet's hosts at one time, including this host. A roster does not
// change.
type roster struct {
	members []Member // members sorted by id
	seeds   []uint64 // hashes of the members' ids
	targets map[transport.Target]struct{}
}

func newRoster(self string, others []Member) *roster {
	r := &roster{targets: map[transport.Target]struct{}{}}
	for _, m := range others {
		if m.ID != self && m.Address != "" && len(r.members) < maxMembers-1 {
			r.members = append(r.members, m)
		}
	}
	r.members = append(r.members, Member{ID: self})
	slices.SortFunc(r.members, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	r.members = slices.CompactFunc(r.members, func(a, b Member) bool { return a.ID == b.ID })
	for _, m := range r.members {
		r.targets[m.Target()] = struct{}{}
		h := fnv.New64a()
		h.Write([]byte(m.ID))
		r.seeds = append(r.seeds, h.Sum64())
	}
	return r
}

// member returns the host with an id; nil: there is none.
func (r *roster) member(id string) *Member {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m Member, id string) int { return strings.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &r.members[i]
}

// keepers returns at most n hosts by rank for an address, the highest rank first. The first of
// these hosts is the address's keeper.
func (r *roster) keepers(a *block.Addr, n int) []*Member {
	type ranked struct {
		m    *Member
		rank uint64
	}
	all := make([]ranked, len(r.members))
	for i := range r.members {
		all[i] = ranked{&r.members[i], rank(r.seeds[i], a)}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Compare(b.rank, a.rank) })
	out := make([]*Member, 0, n)
	for _, k := range all[:min(n, len(all))] {
		out = append(out, k.m)
	}
	return out
}

// keeper returns the keeper of an address: the host with the highest rank.
func (r *roster) keeper(a *block.Addr) *Member {
	best, most := 0, uint64(0)
	for i, seed := range r.seeds {
		if v := rank(seed, a); i == 0 || v > most {
			best, most = i, v
		}
	}
	return &r.members[best]
}

// rank is the rank of a host for an address. All hosts compute the same rank.
func rank(seed uint64, a *block.Addr) uint64 {
	le := binary.LittleEndian
	x := seed ^ le.Uint64(a.Digest[:]) ^ le.Uint64(a.Model[:]) ^ uint64(a.Layer)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // the finaliser of splitmix64
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Target returns the address of a host and the way to connect to it.
func (m *Member) Target() transport.Target {
	return transport.Target{Address: m.Address, Name: m.Name, Lane: m.Lane, Cards: m.Cards, Cache: m.ID}
}

// SetMembers sets the hosts of the fleet. All locations are announced again, because the keepers
// may have changed. Connections to addresses that no host uses any more are closed once their
// requests have ended.
func (v *View) SetMembers(members []Member) {
	r := newRoster(v.o.Self, members)
	was := v.set(r)
	for _, t := range was.gone(r) {
		v.o.Pool.Forget(t)
	}
	was.tell(r, v.o.Logger)
}

// tell logs which other hosts have left, come or restarted.
func (r *roster) tell(now *roster, log *slog.Logger) {
	for _, m := range r.members {
		if now.member(m.ID) == nil {
			log.Info("another cache has left the fleet", "cache", m.ID, "address", m.Address)
		}
	}
	for _, m := range now.members {
		if was := r.member(m.ID); was == nil || was.Instance != m.Instance {
			log.Info("another cache is in the fleet", "cache", m.ID, "address", m.Address)
		}
	}
}

// Others returns the other hosts of the fleet, sorted by id.
func (v *View) Others() (out []Member) {
	for _, m := range v.roster.Load().members {
		if m.ID != v.o.Self {
			out = append(out, m)
		}
	}
	return out
}

// gone returns the targets of r that no member of now has.
func (r *roster) gone(now *roster) (targets []transport.Target) {
	for t := range r.targets {
		if _, there := now.targets[t]; !there {
			targets = append(targets, t)
		}
	}
	return targets
}

// peer returns the connection to a host. ErrUnknownHost: the host has just left or moved.
func (v *View) peer(m *Member) (*transport.Peer, error) {
	t := m.Target()
	p, err := v.o.Pool.Peer(t)
	if _, there := v.roster.Load().targets[t]; err == nil && !there {
		v.o.Pool.Forget(t) // an earlier SetMembers did not see this connection
		return nil, fmt.Errorf("%w: %s at %s", ErrUnknownHost, m.ID, m.Address)
	}
	return p, err
}
