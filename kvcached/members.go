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

// members are the caches that etcd lists. Only the goroutine of the watch may use members, unless a
// field says otherwise.
type members struct {
	config *FleetConfig
	log    *slog.Logger
	self   string // this cache's id
	set    func([]fleet.Member)
	named  func()                  // called once etcd has listed all caches and this cache's own announcement
	caches map[string]fleet.Member // members by cache id

	mu sync.Mutex // guards the fields below, which the registration uses as well
	// etcd revision of this cache's announcement, and the revision of it that set was called with;
	// 0: not yet
	claimed, seen int64
}

// claim records the revision of this cache's announcement. A listing with this revision also has
// every cache that announced itself earlier.
func (m *members) claim(rev int64) { m.arrive(&m.claimed, rev) }

// arrive records one of the two revisions, and calls named if both are there.
func (m *members) arrive(at *int64, rev int64) {
	m.mu.Lock()
	*at = rev
	all := m.claimed != 0 && m.seen >= m.claimed
	m.mu.Unlock()
	if all {
		m.named()
	}
}

// see records this cache's own entry in etcd, after set was called with all entries up to then.
func (m *members) see(e *cluster.Entry) {
	if e.Key == cluster.CacheKey(m.self) {
		m.arrive(&m.seen, e.Rev)
	}
}

// handler updates the members from etcd. The members stay while etcd does not answer. The next
// listing replaces the members, even if etcd has lost its data. Caches announce themselves again at
// their next heartbeat; until then their blocks are misses.
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

// put records a cache and tells whether the members have changed.
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

// member parses the announcement of a cache.
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

// alone makes m list only this cache. m calls refuse if etcd lists another cache that exchanges
// blocks.
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

// wanted is the configured lane to a cache: the lane of its [[fleet.peers]], else fleet.lane.
func (c *FleetConfig) wanted(cache string) transport.Lane {
	for _, p := range c.Peers {
		if p.Cache == cache {
			return transport.Lane(p.Lane)
		}
	}
	return transport.Lane(c.Lane)
}

// way is the address of a cache and the way to connect to it; an empty address: there is no way.
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
	case h.TLS != h.QUIC: // Auto tries both lanes at one address
		return h.QUIC, transport.QUIC, cards
	}
	return h.QUIC, lane, cards
}
