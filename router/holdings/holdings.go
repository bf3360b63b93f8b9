// Package holdings knows the blocks of the hosts' cache daemons and of the engines on those hosts.
// The package follows the residency stream of each daemon (cognitora.v1.Kv Watch). The package
// tells how many leading blocks of a prompt a node has: in the engine's own memory, with the host's
// RAM added, with the host's SSD added, and with the other hosts' daemons added as well.
//
// All blocks are in one router/residency index. A daemon has two holders in the index for each
// configuration of its blocks: RAM, and RAM or SSD (stock.go). A node counts the configuration with
// the most leading blocks, of those that its engine can read. An engine that reports its blocks has
// one holder. Each engine of a host has three holders once an engine of that host reports blocks in
// host memory or on disk. Memory shared with other hosts does not count for an engine. The daemons
// of other hosts count for a daemon that exchanges blocks with them, as far as they do so too, each
// configuration by itself.
//
// The count for each tier is exact. The count for two tiers together is the higher of the two
// counts. That is too low only if one tier fills a gap of the other.
package holdings

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/residency"
)

// maxCaches bounds the followed daemons. Any further daemon is left out and counted in Stats.
const maxCaches = 1024

// maxRefused bounds the count of daemons left out.
const maxRefused = 1 << 16

// Options are the settings of a Map. Each field says what its zero value means.
type Options struct {
	// Cluster is where daemons announce themselves; nil: only Static names daemons.
	Cluster *cluster.Client
	// Static maps a daemon's address, as nodes name it, to its gRPC address: host:port, or
	// unix:///path.
	Static map[string]string
	// Setting says for people which setting names a daemon of Static; nil: nothing does. Setting
	// must not block.
	Setting func(address string) string
	// Local is a residency stream of this process, followed like a daemon's; a nil Local means
	// none.
	Local Watch
	// TLS checks the certificates of daemons on other hosts; nil: only daemons on unix sockets are
	// followed.
	TLS *tls.Config
	// MaxBlocks bounds the index; 0: its default.
	MaxBlocks int
	// NoEngines leaves out the blocks that engines report. The blocks of daemons still count.
	NoEngines bool
	// Promote says which blocks daemons are asked to bring into RAM ahead of requests.
	Promote Promote
	Logger  *slog.Logger // nil: slog.Default
}

// Map holds the blocks of all followed daemons. Any number of goroutines may call Match.
type Map struct {
	o     Options
	index *residency.Index
	view  atomic.Pointer[view]

	promoter *promoter
	spaces   spaces

	mu      sync.Mutex
	life    context.Context // context of Run; nil before
	wg      sync.WaitGroup
	static  map[string]string
	caches  map[string]*cache // by cache id, or static address
	local   *cache            // of Options.Local; nil: none
	further int               // configurations beyond the first one of each cache
	refused map[string]bool   // ids of announced daemons beyond maxCaches; at most maxRefused
}

// view is the part that requests read. view is immutable.
type view struct {
	caches    []*cache
	byAddress map[string]int32   // places in caches
	engines   map[string]*engine // by node id
}

// Stats are the counts of a Map.
type Stats struct {
	Caches, Live int    // daemons followed; daemons whose stream is up to date
	Engines      int    // engines that report their own memory
	Roomless     int    // engines that report, but have no place in the index
	Readers      int    // nodes whose engines say what they can read
	Held         int    // configurations of daemons' blocks
	LeftOut      uint64 // blocks of configurations without a place
	Overflow     uint64 // blocks dropped for want of room
	Refused      int    // daemons beyond maxCaches, 65,536 at most
	Reconnects   uint64
	Resyncs      uint64 // snapshots taken
	// These count the promotions that succeeded, failed, or were dropped at a full queue, and the
	// blocks that they brought into RAM.
	Promotions, PromotionsFailed, PromotionsDropped, Promoted uint64
	Index                                                     residency.Stats
}

// New makes a Map. The Map follows no daemon before Run.
func New(o Options) *Map {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	m := &Map{o: o, index: residency.New(residency.Options{MaxBlocks: o.MaxBlocks}), caches: map[string]*cache{},
		refused: map[string]bool{}, static: o.Static, promoter: newPromoter(o.Promote)}
	m.view.Store(&view{})
	return m
}

// Empty says that no daemon is known.
func (m *Map) Empty() bool {
	v := m.view.Load()
	return len(v.byAddress)+len(v.engines) == 0
}

// Reports says whether the node's engine reports the blocks in its own memory.
func (m *Map) Reports(node string) bool { return m.view.Load().engines[node] != nil }

// Run follows the daemons until ctx ends.
func (m *Map) Run(ctx context.Context) error {
	defer m.wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.begin(ctx)
	if m.promoter.mode != PromoteOff {
		for range promoteWorkers {
			m.wg.Go(func() { m.promote(ctx, &m.promoter.now) })
		}
		for range waitings { // all of them may wait for engines at once
			m.wg.Go(func() { m.promote(ctx, &m.promoter.next) })
		}
	}
	if m.o.Cluster == nil {
		<-ctx.Done()
		return nil
	}
	return m.o.Cluster.Watch(ctx, cluster.CachesPrefix, cluster.Handler{
		List: func(l cluster.Listing) {
			if !l.DataLost && !l.AfterOutage {
				m.retain(l.Entries)
			}
			for _, e := range l.Entries {
				m.announced(e)
			}
		},
		Put:    m.announced,
		Delete: func(key string) { m.leave(key[len(cluster.CachesPrefix):]) },
		Lost:   func(error) {}, // the streams go on without etcd; the fleet logs the loss
	})
}

// begin follows the configured daemons.
func (m *Map) begin(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life = ctx
	for address, target := range m.static {
		m.follow(address, []string{address}, target)
	}
	if m.o.Local != nil {
		c := newCache(m, "this router", nil, "")
		c.open = m.o.Local
		m.wg.Go(func() { c.run(ctx) })
		m.local = c
		m.publish()
	}
}

// Watch opens a cognitora.v1.Kv Watch stream. The stream ends with ctx.
type Watch func(ctx context.Context, r *cognitorav1.WatchRequest) (Stream, error)

// Stream is an open Watch. A message is valid until the next Recv.
type Stream interface {
	Recv() (*cognitorav1.WatchResponse, error)
}

// SetStatic replaces Options.Static.
func (m *Map) SetStatic(static map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.static
	m.static = static
	if m.life == nil {
		return
	}
	for address := range was {
		if c := m.caches[address]; c != nil && static[address] == "" {
			m.drop(c)
		}
	}
	for address, target := range static {
		m.follow(address, []string{address}, target)
	}
	m.publish()
}

// retain drops the announced daemons that are not among the entries.
func (m *Map) retain(entries []cluster.Entry) {
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Key[len(cluster.CachesPrefix):]] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.refused, func(id string, _ bool) bool { return !there[id] })
	for id, c := range m.caches {
		if m.static[id] == "" && !there[id] {
			m.drop(c)
		}
	}
	m.publish()
}

// announced reads a daemon's announcement in etcd. An unreadable value changes nothing.
func (m *Map) announced(e cluster.Entry) {
	id := e.Key[len(cluster.CachesPrefix):]
	h, err := cluster.ParseCacheHealth(id, e.Value)
	if err != nil {
		m.o.Logger.Warn("cache daemon's announcement is not used", "cache", id, "error", err)
		return
	}
	addresses := []string{}
	for _, a := range []string{h.QUIC, h.TLS, h.GRPC} {
		if a != "" {
			addresses = append(addresses, a)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.follow(id, addresses, h.GRPC)
}

// follow starts to follow a daemon, or follows it at a new address. The caller holds m.mu.
func (m *Map) follow(id string, addresses []string, target string) {
	was := m.caches[id]
	switch {
	case was != nil && was.target == target && slices.Equal(was.addresses, addresses):
		return
	case was != nil:
		m.drop(was)
	case target != "" && len(m.caches) >= maxCaches:
		if m.static[id] == "" && len(m.refused) < maxRefused {
			m.refused[id] = true
		}
		return
	}
	delete(m.refused, id)
	if target == "" {
		m.publish()
		return
	}
	c := newCache(m, id, addresses, target)
	m.caches[id] = c
	m.publish()
	var ctx context.Context
	ctx, c.stop = context.WithCancel(m.life)
	m.wg.Go(func() { c.run(ctx) })
}

func (m *Map) leave(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, id)
	if c := m.caches[id]; c != nil {
		m.drop(c)
		m.publish()
	}
}

// drop stops following a daemon and forgets its blocks. The caller holds m.mu.
func (m *Map) drop(c *cache) {
	delete(m.caches, c.id)
	c.stop()
	c.left = true
	configurations := c.stock.Load().configurations
	m.further -= max(len(configurations)-1, 0)
	for _, of := range configurations {
		m.index.Leave(of.host)
		m.index.Leave(of.any)
	}
	for _, e := range c.engines {
		for _, ref := range e.refs() {
			m.index.Leave(ref)
		}
	}
}

// add adds the engines that report through a cache.
func (v *view) add(c *cache) {
	for _, e := range c.engines {
		if was := v.engines[e.node]; was == nil || was.epoch < e.epoch {
			v.engines[e.node] = e
		}
	}
}

// publish makes a new view from m.caches. The caller holds m.mu.
func (m *Map) publish() {
	v := &view{byAddress: map[string]int32{}, engines: map[string]*engine{}}
	for _, c := range m.caches {
		for _, a := range c.addresses {
			v.byAddress[a] = int32(len(v.caches))
		}
		v.caches = append(v.caches, c)
		v.add(c)
	}
	if m.local != nil {
		v.add(m.local)
	}
	m.view.Store(v)
}

// Stats returns the counts as of now.
func (m *Map) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Caches: len(m.caches), Refused: len(m.refused), Index: m.index.Stats()}
	s.Overflow = s.Index.Overflow
	p := m.promoter
	s.Promotions, s.PromotionsFailed, s.PromotionsDropped, s.Promoted = p.begun.Load(), p.failed.Load(),
		p.dropped.Load(), p.blocks.Load()
	if m.local != nil {
		s.Engines += len(m.local.engines)
		s.Roomless += len(m.local.roomless)
	}
	for _, c := range m.caches {
		if c.live() {
			s.Live++
		}
		s.Engines += len(c.engines)
		s.Roomless += len(c.roomless)
		stock := c.stock.Load()
		s.Held += len(stock.configurations)
		s.Readers += len(stock.readers)
		s.LeftOut += c.leftOut.Load()
		s.Reconnects += c.reconnects.Load()
		s.Resyncs += c.resyncs.Load()
	}
	return s
}

// errStream ends a stream whose messages contradict each other. The stream then begins anew.
var errStream = errors.New("holdings: the residency stream skips or contradicts itself")

// errMedia begins a stream anew because an engine has blocks outside its own memory. All blocks of
// that engine then get the holders for host memory and disk.
var errMedia = errors.New("holdings: an engine of the host uses more than its own memory")

// These constants bound the connection to a daemon.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second
	// freshFor is how long a daemon's data counts after its stream has broken.
	freshFor = 2 * time.Second
	// maxMessage is the longest accepted message in bytes.
	maxMessage = 16 << 20
)
