package kvcached

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// members are the caches that etcd names. It belongs to the goroutine of the watch.
type members struct {
	config *FleetConfig
	log    *slog.Logger
	self   string // this cache's id
	set    func([]fleet.Member)
	named  func()                  // told once etcd has named all caches, with this one as it has announced itself
	caches map[string]fleet.Member // by cache id

	mu sync.Mutex // the rest is the registration's, too
	// revisions at which this cache announced itself and at which set was told of that; 0: not yet
	claimed, seen int64
}

// claim notes that this cache has announced itself. Whoever did so before it is seen with it.
func (m *members) claim(rev int64) { m.arrive(&m.claimed, rev) }

// arrive takes in one of the two revisions.
func (m *members) arrive(at *int64, rev int64) {
	m.mu.Lock()
	*at = rev
	all := m.claimed != 0 && m.seen >= m.claimed
	m.mu.Unlock()
	if all {
		m.named()
	}
}

// see notes what etcd says of this cache itself, after set has been told of all up to then.
func (m *members) see(e *cluster.Entry) {
	if e.Key == cluster.CacheKey(m.self) {
		m.arrive(&m.seen, e.Rev)
	}
}

// handler takes in what is announced. While etcd does not answer, the members stay; what it lists
// then is what counts, even where it has lost its data: caches announce themselves anew at their
// next heartbeat, and until then their blocks are misses.
func (m *members) handler() cluster.Handler {
	return cluster.Handler{
		List: func(l cluster.Listing) {
			clear(m.caches)
			for _, e := range l.Entries {
				m.put(e)
			}
			m.tell()
			for i := range l.Entries {
				m.see(&l.Entries[i])
			}
		},
		Put: func(e cluster.Entry) {
			if m.put(e) {
				m.tell()
			}
			m.see(&e)
		},
		Delete: func(key string) {
			delete(m.caches, cluster.CacheOf(key))
			m.tell()
		},
	}
}

// put notes a cache, and tells whether that changes anything.
func (m *members) put(e cluster.Entry) bool {
	now, err := m.config.member(e)
	if err != nil {
		m.log.Warn("an announcement of a cache in etcd cannot be read, the cache is left out or stays as it was",
			"error", err)
		return false
	}
	was, there := m.caches[now.ID]
	m.caches[now.ID] = now
	return !there || was != now
}

// member is what a cache has announced.
func (c *FleetConfig) member(e cluster.Entry) (fleet.Member, error) {
	id := cluster.CacheOf(e.Key)
	h, err := cluster.ParseCacheHealth(id, e.Value)
	if err != nil {
		return fleet.Member{}, err
	}
	m := fleet.Member{ID: id, Instance: h.Instance}
	m.Address, m.Lane, m.Cards = c.way(h)
	return m, nil
}

// alone makes m tell of this cache only, and refuse hear of another one with which blocks would be
// exchanged.
func (m *members) alone(self string, refuse func(error)) {
	set := m.set
	m.set = func(all []fleet.Member) {
		slices.SortFunc(all, func(a, b fleet.Member) int { return strings.Compare(a.ID, b.ID) })
		for _, other := range all {
			if other.ID != self && other.Address != "" {
				refuse(&strangerError{other.ID})
				break
			}
		}
		set(slices.DeleteFunc(all, func(other fleet.Member) bool { return other.ID != self }))
	}
}

func (m *members) tell() { m.set(slices.Collect(maps.Values(m.caches))) }

// wanted is how a cache is to be spoken to: fleet.lane, or what [[fleet.peers]] says of it.
func (c *FleetConfig) wanted(cache string) transport.Lane {
	for _, p := range c.Peers {
		if p.Cache == cache {
			return transport.Lane(p.Lane)
		}
	}
	return transport.Lane(c.Lane)
}

// way is how a cache is reached; no address: not at all.
func (c *FleetConfig) way(h *cluster.CacheHealth) (address string, lane transport.Lane, cards transport.OneSided) {
	lane = c.wanted(h.CacheID)
	switch lane {
	case transport.Auto:
		cards = transport.Trusted
	case transport.RDMA:
		lane, cards = transport.Auto, transport.Demanded
	}
	switch {
	case h.QUIC == "" || lane == transport.TLS && h.TLS != "":
		return h.TLS, transport.TLS, cards
	case h.TLS != h.QUIC: // Auto tries both at one address
		return h.QUIC, transport.QUIC, cards
	}
	return h.QUIC, lane, cards
}
