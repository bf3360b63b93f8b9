package agent

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/residency"
)

// EventsConfig is the [kv_events] section.
type EventsConfig struct {
	Endpoint  string `toml:"endpoint" flag:"kv-events" help:"address where the engine publishes its KV events, tcp://HOST:PORT or ipc:///PATH; a data-parallel rank adds its number to the port; with @ in front the agent listens and the engine connects; empty: the agent follows no events"`
	Replay    string `toml:"replay" flag:"kv-replay" help:"address where the engine repeats KV events that the agent missed (vLLM: replay_endpoint), tcp://HOST:PORT or ipc:///PATH; empty: a missed event makes the agent forget all blocks of the engine"`
	Topic     string `toml:"topic" help:"beginning of the topic of the events to follow; empty: every topic"`
	Model     string `toml:"model" help:"name of the engine's base model, which is part of its blocks' digests; empty: the only model that the engine lists, LoRA adapters aside"`
	MaxBlocks int    `toml:"max_blocks" default:"1048576" help:"most blocks of the engine that the agent remembers, about 150 bytes each, and with lmcache 130, with hicache 170 more; the agent counts further blocks and leaves them out"`
	Report    string `toml:"report" flag:"kv-report" help:"gRPC socket of this host's cgn-kvcached (its kvcached.sock), which then tells routers about the engine's blocks; empty: the agent tells routers itself, at listen"`
	Listen    string `toml:"listen" flag:"kv-listen" help:"address where the agent tells routers about the engine's blocks if report is empty: host:port, with the certificates of [tls], or unix:///PATH"`
	Advertise string `toml:"advertise" help:"host:port under which routers reach listen; empty: made of listen, with the host's name in place of a wildcard"`

	LMCache LMCacheConfig `toml:"lmcache" help:"LMCache of the engine, unchanged, whose chunks count in routing."`
	HiCache HiCacheConfig `toml:"hicache" help:"hierarchical cache of an SGLang, unchanged, whose pages count in routing."`
}

func (u *unit) validateEvents(p *problems) {
	e := &u.Events
	if e.Endpoint == "" {
		for _, f := range []struct{ field, value string }{{"replay", e.Replay}, {"topic", e.Topic}, {"model", e.Model},
			{"report", e.Report}, {"listen", e.Listen}, {"advertise", e.Advertise},
			{"lmcache.remote_url", e.LMCache.RemoteURL}, {"hicache.bucket", e.HiCache.Bucket}} {
			if f.value != "" {
				p.add(u.name("kv_events."+f.field), "is for %s, which is empty: set that, or leave this out",
					u.mention("kv_events.endpoint", "--kv-events"))
			}
		}
		return
	}
	if _, err := events.ParseEndpoint(e.Endpoint); err != nil {
		p.add(u.name("kv_events.endpoint"), "%v", err)
	}
	if e.Replay != "" {
		if at, err := events.ParseEndpoint(e.Replay); err != nil {
			p.add(u.name("kv_events.replay"), "%v", err)
		} else if at.Listen {
			p.add(u.name("kv_events.replay"), "%q: the engine listens there; leave the @ out", e.Replay)
		}
	}
	if at, err := events.ParseEndpoint(e.Endpoint); err == nil {
		replay, _ := events.ParseEndpoint(e.Replay)
		if err := events.CheckRanks(at, replay, u.DataParallel); err != nil {
			p.add(u.name("data_parallel_size"), "%v", err)
		}
	}
	if e.MaxBlocks < 1 || e.MaxBlocks > 1<<26 {
		p.add(u.name("kv_events.max_blocks"), "%d is not in 1..%d", e.MaxBlocks, 1<<26)
	}
	u.validateEventsWay(p)
	u.validateChunks(p)
}

// validateEventsWay checks the settings by which routers learn the engine's cached blocks.
func (u *unit) validateEventsWay(p *problems) {
	e := &u.Events
	switch {
	case (e.Report == "") == (e.Listen == ""):
		p.add(u.name("kv_events.report"), "routers learn what the engine has from the cgn-kvcached of this host, or "+
			"from the agent: set either %s, or %s",
			u.mention("kv_events.report", "--kv-report"), u.mention("kv_events.listen", "--kv-listen"))
	case e.Report != "":
		d, err := events.NewDaemon(e.Report)
		if err != nil {
			p.add(u.name("kv_events.report"), "%v", err)
			return
		}
		_ = d.Close()
	default:
		if err := listen.Check(e.Listen); err != nil {
			p.add(u.name("kv_events.listen"), "%v", err)
		} else if !strings.HasPrefix(e.Listen, "unix://") && !u.config.authenticates() {
			p.add(u.name("kv_events.listen"), "%q is served with certificates only: set tls.ca, tls.cert and tls.key "+
				"(cgn-ctl pki bootstrap makes them), or give unix:///PATH", e.Listen)
		}
	}
}

// eventFeed follows the engine's KV events, those of each data-parallel rank by a follower of its
// own. The feed's zero value follows none.
type eventFeed struct {
	options  *events.Options  // of the first rank; nil: no events are followed
	daemon   *events.Daemon   // receives the reports, unless index does
	index    *residency.Index // receives the reports, and is served at listener
	listener net.Listener
	epoch    int64         // the engine's epoch at the last look
	refit    chan struct{} // the number of ranks has changed
	several  sync.Once

	mu        sync.Mutex
	ranks     int
	followers []*events.Follower // by rank
}

func (n *node) prepareEvents() (err error) {
	u := n.unit
	c := &u.Events
	if c.Endpoint == "" {
		return nil
	}
	o := events.Options{
		Engine: n.id(), Topic: c.Topic, Model: n.baseModel, MaxBlocks: c.MaxBlocks, Logger: n.log,
		Adapter:   n.engine.UsedAdapter,
		Namespace: block.Namespace{DType: u.DType, Layout: u.Engine.Kind, TP: uint32(max(u.TP, 1))},
	}
	if o.Endpoint, err = events.ParseEndpoint(c.Endpoint); err != nil {
		return err
	}
	if c.Replay != "" {
		if o.Replay, err = events.ParseEndpoint(c.Replay); err != nil {
			return err
		}
	}
	e := &n.events
	if c.Report != "" {
		if e.daemon, err = events.NewDaemon(c.Report); err != nil {
			return err
		}
		o.Sink, o.SinkName = e.daemon, u.name("kv_events.report")+" = "+strconv.Quote(c.Report)
		var why string
		if o.Chunks, why, err = u.chunks(n.id(), n.engine.OwnTiers); err != nil {
			return err
		}
		if o.Chunks != nil {
			o.Chunks.Sink = e.daemon
		} else if why != "" {
			n.log.Warn("what the engine stores beyond its memory does not count in routing", "why", why)
		}
		o.ReadsNothing = len(u.caches()) == 0 && u.Engine.ReadsNothing()
	} else {
		if e.listener, err = listen.OpenFor(u.name("kv_events.listen"), u.flag("--kv-listen"), c.Listen); err != nil {
			return err
		}
		e.index = residency.New(residency.Options{MaxEngines: load.MaxRanks})
		o.Sink = e.index
		n.described.KVEvents = c.advertised(e.listener.Addr())
	}
	e.options, e.refit, e.ranks = &o, make(chan struct{}, 1), max(u.DataParallel, 1)
	e.make()
	return nil
}

// make makes the followers of the ranks. The caller holds e.mu, or is alone.
func (e *eventFeed) make() {
	e.followers = nil
	for rank := range e.ranks {
		o := *e.options
		var err error
		if o.Endpoint, err = o.Endpoint.OfRank(rank); err == nil {
			o.Replay, err = o.Replay.OfRank(rank)
		}
		if err != nil {
			o.Logger.Error("KV events of a data-parallel rank are not followed", "dp_rank", rank, "error", err)
			continue
		}
		if e.ranks > 1 {
			o.Engine = cluster.RankName(o.Engine, rank)
			o.Logger = o.Logger.With("dp_rank", rank)
		}
		e.followers = append(e.followers, events.New(o))
	}
}

// fit tells the feed the number of the engine's ranks; 0: unknown.
func (e *eventFeed) fit(ranks int) {
	if e.options == nil || ranks == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ranks != ranks {
		e.ranks = ranks
		await.Wake(e.refit)
	}
}

// advertised returns the address that the node announces to routers.
func (c *EventsConfig) advertised(at net.Addr) string {
	if at.Network() == "unix" {
		return "unix://" + at.String()
	}
	if c.Advertise != "" {
		return c.Advertise
	}
	return net.JoinHostPort(hostOn(c.Listen), portOf(at))
}

// baseModel is the model name that digests are made from; empty while it is unknown.
func (n *node) baseModel() string {
	if n.unit.Events.Model != "" {
		return n.unit.Events.Model
	}
	models := n.engine.State().Bases()
	if len(models) == 1 {
		return models[0]
	}
	if len(models) > 1 {
		n.events.several.Do(func() {
			n.log.Error("the engine lists several models, so its KV events are not followed: name its base model with "+
				n.unit.name("kv_events.model"), "models", models)
		})
	}
	return ""
}

// follow follows the events until ctx ends. When the number of ranks changes, follow begins anew.
func (e *eventFeed) follow(ctx context.Context) {
	if e.options == nil {
		<-ctx.Done()
		return
	}
	for e.followOnce(ctx); ctx.Err() == nil; e.followOnce(ctx) {
		e.mu.Lock()
		e.make()
		e.mu.Unlock()
	}
	if e.daemon != nil {
		_ = e.daemon.Close()
	}
}

// followOnce follows the events until ctx ends or the number of ranks changes.
func (e *eventFeed) followOnce(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, f := range e.all() {
		all.Go(func() { f.Run(ctx) })
	}
	select {
	case <-e.refit:
	case <-ctx.Done():
	}
}

// all returns the present followers.
func (e *eventFeed) all() []*events.Follower {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.followers
}

// serve lets routers watch until ctx ends.
func (n *node) serveEvents(ctx context.Context) error {
	if n.events.listener == nil {
		<-ctx.Done()
		return nil
	}
	return events.Serve(ctx, n.events.listener, n.events.index, n.agent.identity, n.agent.audit)
}

// restarted tells the follower when the engine's epoch has changed.
func (e *eventFeed) restarted(epoch int64) {
	if e.epoch != 0 && epoch != e.epoch {
		for _, f := range e.all() {
			f.Restarted()
		}
	}
	e.epoch = epoch
}

// indexes of eventDefs.
const (
	defEventsFollowing = iota
	defEventsComplete
	defEventsBlocks
	defEventsPending
	defChunks
	defChunksRefused
	defChunksLost
	defEventsCounted // the first of the counters
)

var eventDefs = func() []metric.Def {
	defs := []metric.Def{
		defEventsFollowing: {Name: "cgn_agent_kv_events_following", Labels: ofNode, Help: "1 while the agent follows the engine's KV events, and so knows its cached blocks; absent, as all cgn_agent_kv_events metrics, if it follows none."},
		defEventsComplete:  {Name: "cgn_agent_kv_events_complete", Labels: ofNode, Help: "1 if the engine's KV events were followed from an empty cache on; 0: blocks that it cached earlier do not count."},
		defEventsBlocks:    {Name: "cgn_agent_kv_events_blocks", Labels: ofNode, Help: "Blocks that the engine has cached, as its KV events say."},
		defEventsPending:   {Name: "cgn_agent_kv_events_pending", Labels: ofNode, Help: "Changes of the engine's blocks that are not reported to routers yet, in blocks of 16 tokens."},
		defChunks:          {Name: "cgn_agent_chunks_told_total", Kind: metric.Counter, Labels: ofNode, Help: "Chunks of the engine's cache (LMCache, vLLM's object tier or SGLang's HiCache) of which the cache daemon was told which blocks they stand for; repeated ones count again."},
		defChunksRefused:   {Name: "cgn_agent_chunks_refused_total", Kind: metric.Counter, Labels: ofNode, Help: "Chunks of the engine's cache that the cache daemon did not take: it was away, or they contradict what it knows (cgn-ctl kv stats)."},
		defChunksLost:      {Name: "cgn_agent_chunks_lost_total", Kind: metric.Counter, Labels: ofNode, Help: "Chunks of the engine's cache that were not told because the engine had dropped a block of them, or because too many waited."},
	}
	for _, c := range events.Counters {
		defs = append(defs, metric.Def{Name: "cgn_agent_kv_events_" + c.Name + "_total", Kind: metric.Counter,
			Labels: ofNode, Help: c.Help})
	}
	return defs
}()

// emitEvents emits the metrics of the event feed, the sum over the engine's ranks.
func (n *node) emitEvents(emit emit) {
	all := n.events.all()
	if len(all) == 0 {
		return
	}
	s := all[0].Stats()
	for _, f := range all[1:] {
		other := f.Stats()
		s.Add(&other)
	}
	emitAll(emit, defEventsFollowing, []float64{metric.Bool(s.Following), metric.Bool(s.Complete), float64(s.Blocks),
		float64(s.Pending), float64(s.Chunks), float64(s.ChunksRefused), float64(s.ChunksLost)}, n.id())
	for i, count := range s.Counts() {
		emit(defEventsCounted+i, float64(count), n.id())
	}
}
