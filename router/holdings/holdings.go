// Package holdings knows what the hosts' cache daemons say that they and their engines have: it
// follows the residency stream of each (cognitora.v1.Kv Watch) and answers, for a prompt and a
// node, how many leading blocks are in the engine's own memory, and how far they reach with what
// the host has in RAM and on SSD.
//
// Blocks go into one router/residency index. Each daemon registers two holders in it: RAM, and
// RAM or SSD. An engine that reports has one, or three once an
// engine of its host reports blocks that it has in the host's memory or on disk itself. What an
// engine shares with other hosts does not count for it. A block of which the daemon knows no parent
// cannot have a place in that index; a prompt that gets to it is looked up block by block from
// there on (loose.go).
//
// What each tier has is exact. How far two of them reach together is taken for the further of both,
// which is too little only where one has blocks that the other lacks in between.
package holdings

import (
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

// maxCaches bounds the daemons that are followed; others are left out, and counted in Stats.
const maxCaches = 1024

// maxRefused bounds the daemons that are counted as left out.
const maxRefused = 1 << 16

// Options of a Map. Zero values mean what the fields say.
type Options struct {
	// Cluster is where daemons announce themselves; nil: nobody is followed but what Static names.
	Cluster *cluster.Client
	// Static maps the address under which nodes name a daemon to where it serves gRPC: host:port,
	// or unix:///path.
	Static map[string]string
	// Local is watched as a daemon would be, in this process; nil: there is nothing to watch.
	Local Watch
	// TLS is how daemons on other hosts are checked; nil: only those on unix sockets are followed.
	TLS *tls.Config
	// MaxBlocks bounds the index; 0: its default.
	MaxBlocks int
	// Promote says what daemons are asked to bring into RAM ahead of requests.
	Promote Promote
	Logger  *slog.Logger // nil: slog.Default
}

// Map is what the daemons hold. Match may be called by any number of goroutines.
type Map struct {
	options Options
	index   *residency.Index
	view    atomic.Pointer[view]

	promoter *promoter
	spaces   spaces

	mu      sync.Mutex
	life    context.Context // of Run; nil before
	wg      sync.WaitGroup
	static  map[string]string
	caches  map[string]*cache // by cache id, or static address
	local   *cache            // of Options.Local; nil: none
	refused map[string]bool   // ids of announced daemons beyond maxCaches; at most maxRefused
}

// view is what requests look into. It is immutable.
type view struct {
	rev       uint64
	byAddress map[string]*cache
	engines   map[string]*engine // by node id
}

// Stats counts what is known.
type Stats struct {
	Caches, Live int    // daemons followed, and of those the ones whose stream is up to date
	Engines      int    // that report their own memory
	Loose        int64  // blocks without a place in their chain
	Overflow     uint64 // blocks that there was no room for
	Refused      int    // daemons that are too many, 65,536 at most
	Reconnects   uint64
	Resyncs      uint64 // snapshots taken
	// Promotions that were done, that failed, that were dropped because too many wait, and the
	// blocks that came to RAM by them.
	Promotions, PromotionsFailed, PromotionsDropped, Promoted uint64
	Index                                                     residency.Stats
}

// New makes a Map that follows nobody before Run.
func New(o Options) *Map {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	m := &Map{options: o, index: residency.New(residency.Options{MaxBlocks: o.MaxBlocks}), caches: map[string]*cache{},
		refused: map[string]bool{}, static: o.Static, promoter: newPromoter(o.Promote)}
	m.view.Store(&view{})
	return m
}

// Empty tells that no daemon is known, so that there is nothing to ask.
func (m *Map) Empty() bool {
	v := m.view.Load()
	return len(v.byAddress)+len(v.engines) == 0
}

// Reports tells whether the node's engine tells what it has in its own memory.
func (m *Map) Reports(node string) bool { return m.view.Load().engines[node] != nil }

// Rev changes with what Reports tells.
func (m *Map) Rev() uint64 { return m.view.Load().rev }

// Run follows the daemons until ctx ends.
func (m *Map) Run(ctx context.Context) error {
	defer m.wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.begin(ctx)
	if m.promoter.mode != PromoteOff {
		for range promoteWorkers {
			m.wg.Go(func() { m.promote(ctx) })
		}
	}
	if m.options.Cluster == nil {
		<-ctx.Done()
		return nil
	}
	return m.options.Cluster.Watch(ctx, cluster.CachesPrefix, cluster.Handler{
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
		Lost:   func(error) {}, // streams go on without etcd; the fleet says that it is gone
	})
}

// begin follows what is configured.
func (m *Map) begin(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life = ctx
	for address, target := range m.static {
		m.follow(address, []string{address}, target)
	}
	if m.options.Local != nil {
		c := newCache(m, "this router", nil, "")
		c.open = m.options.Local
		m.wg.Go(func() { c.run(ctx) })
		m.local = c
		m.publish()
	}
}

// Watch is the call of cognitora.v1.Kv. The stream ends with ctx.
type Watch func(ctx context.Context, r *cognitorav1.WatchRequest) (Stream, error)

// Stream is what is read of it. A message is valid until the next call.
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

// retain lets go of the announced daemons that are not among the entries.
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

// announced takes in what a daemon says in etcd. A value that cannot be read changes nothing.
func (m *Map) announced(e cluster.Entry) {
	id := e.Key[len(cluster.CachesPrefix):]
	h, err := cluster.ParseCacheHealth(id, e.Value)
	if err != nil {
		m.options.Logger.Warn("cache daemon's announcement is not used", "cache", id, "error", err)
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

// follow starts to follow a daemon, or follows it elsewhere if it has moved. m.mu is held.
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

// drop ends the following of a daemon and forgets what it holds. m.mu is held.
func (m *Map) drop(c *cache) {
	delete(m.caches, c.id)
	c.stop()
	c.left = true
	m.index.Leave(c.host)
	m.index.Leave(c.any)
	for _, e := range c.engines {
		for _, ref := range e.refs() {
			m.index.Leave(ref)
		}
	}
}

// add takes in the engines that report through a cache.
func (v *view) add(c *cache) {
	for _, e := range c.engines {
		if was := v.engines[e.node]; was == nil || was.epoch < e.epoch {
			v.engines[e.node] = e
		}
	}
}

// publish makes the view follow m.caches. m.mu is held.
func (m *Map) publish() {
	v := &view{rev: m.view.Load().rev + 1, byAddress: map[string]*cache{}, engines: map[string]*engine{}}
	for _, c := range m.caches {
		for _, a := range c.addresses {
			v.byAddress[a] = c
		}
		v.add(c)
	}
	if m.local != nil {
		v.add(m.local)
	}
	m.view.Store(v)
}

// Stats counts what is known now.
func (m *Map) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Caches: len(m.caches), Refused: len(m.refused), Index: m.index.Stats()}
	s.Overflow = s.Index.Overflow
	p := m.promoter
	s.Promotions, s.PromotionsFailed, s.PromotionsDropped, s.Promoted = p.asked.Load(), p.failed.Load(),
		p.dropped.Load(), p.blocks.Load()
	if m.local != nil {
		s.Engines += len(m.local.engines)
	}
	for _, c := range m.caches {
		if c.live() {
			s.Live++
		}
		s.Engines += len(c.engines)
		s.Loose += c.loose.count.Load()
		s.Overflow += c.loose.overflow.Load()
		s.Reconnects += c.reconnects.Load()
		s.Resyncs += c.resyncs.Load()
	}
	return s
}

// errStream ends a stream whose messages do not fit together; it is begun anew.
var errStream = errors.New("holdings: the residency stream skips or contradicts itself")

// errMedia begins a stream anew because an engine has blocks elsewhere than in its own memory: all
// that it has takes places of its own then.
var errMedia = errors.New("holdings: an engine of the host uses more than its own memory")

// Bounds of the connection to a daemon.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second
	// trustFor is how long what a daemon said is believed after its stream has broken.
	trustFor = 2 * time.Second
	// maxMessage is the longest message that is taken, in bytes.
	maxMessage = 16 << 20
)
