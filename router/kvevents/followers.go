// Package kvevents lets the router follow the KV events of static backends, as an agent does for
// its engine. The blocks of these engines go into a residency index of this process.
// router/holdings watches that index as it watches a cache daemon.
package kvevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/feed"
	"github.com/cognitora/dataplane/kv/residency"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/holdings"
)

// Stats are the counts of one follower.
type Stats = events.Stats

// Counters are the ever-growing numbers in Stats, for metrics.
var Counters = events.Counters

// maxSources bounds the engines that one router follows. router/holdings accepts no more engines of
// one stream.
const maxSources = 256

// Source is one data-parallel rank of an engine with the addresses of the engine's KV events.
type Source struct {
	Node             string // id
	Name             string // name of the rank in the fleet; the node's id if the node has one rank
	Rank             int    // its number, which it adds to the ports of both addresses
	Endpoint, Replay string
}

// Check validates the addresses of the events of an engine with so many ranks; replay may be empty.
func Check(endpoint, replay string, ranks int) error {
	at, err := endpointOf(endpoint, 0)
	if err != nil {
		return fmt.Errorf("option kv-events: %w", err)
	}
	again, err := endpointOf(replay, 0)
	if err == nil && again.Listen {
		err = errors.New("the engine listens there; leave the @ out")
	}
	if err != nil {
		return fmt.Errorf("option kv-replay: %w", err)
	}
	if err := events.CheckRanks(at, again, ranks); err != nil {
		return fmt.Errorf("option data_parallel_size: %w", err)
	}
	return nil
}

// endpointOf returns the endpoint of a rank; an empty address is none.
func endpointOf(address string, rank int) (events.Endpoint, error) {
	if address == "" {
		return events.Endpoint{}, nil
	}
	at, err := events.ParseEndpoint(address)
	if err != nil {
		return at, err
	}
	return at.OfRank(rank)
}

// Options are the settings of Followers.
type Options struct {
	// Model returns the only base model of a node. Model returns "" while the model is unknown, or
	// if there are several. Required.
	Model func(node string) string
	// Adapter is called for a node with the name of each LoRA adapter for which its engine stores
	// blocks; nil: nobody wants to know. The name is valid during the call, which must not block.
	Adapter func(node string, name []byte)
	Logger  *slog.Logger // nil: slog.Default
}

// Followers follow the KV events of any number of engines.
type Followers struct {
	o     Options
	index *residency.Index

	mu      sync.Mutex
	life    context.Context // context of Run; nil before
	wg      sync.WaitGroup
	wanted  []Source
	running map[Source]*running
	ending  map[string]chan struct{} // by rank; closed once the rank's last stopped follower has ended
}

type running struct {
	*events.Follower
	stop context.CancelFunc
	done chan struct{}
}

// New makes Followers. The Followers follow no engine before Run.
func New(o Options) *Followers {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return &Followers{o: o, index: residency.New(residency.Options{MaxEngines: maxSources}),
		running: map[Source]*running{}, ending: map[string]chan struct{}{}}
}

// Run follows the engines until ctx ends.
func (f *Followers) Run(ctx context.Context) error {
	f.mu.Lock()
	f.life = ctx
	f.sync()
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.life, f.wanted = nil, nil
	f.mu.Unlock()
	f.wg.Wait()
	return nil
}

// Set replaces the followed ranks. A rank in both lists is followed without a break. The ranks
// beyond maxSources are left out.
func (f *Followers) Set(ranks []Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	followed := ranks[:min(len(ranks), maxSources)]
	if slices.Equal(followed, f.wanted) {
		return
	}
	f.wanted = followed
	if leftOut := len(ranks) - len(followed); leftOut > 0 {
		f.o.Logger.Error("too many data-parallel ranks of backends for the KV events of all; the cached blocks of "+
			"the others are predicted", "ranks_followed", maxSources, "ranks_left_out", leftOut)
	}
	f.sync()
}

// sync starts and stops followers to match the sources. The caller holds f.mu.
func (f *Followers) sync() {
	if f.life == nil {
		return
	}
	wanted := map[Source]bool{}
	for _, s := range f.wanted {
		wanted[s] = true
	}
	for s, r := range f.running {
		if !wanted[s] {
			r.stop()
			f.ending[s.Name] = r.done
			delete(f.running, s)
		}
	}
	for s := range wanted {
		if f.running[s] == nil {
			f.start(s, f.ending[s.Name])
		}
	}
}

// ended closes done, and forgets it. A later follower of the rank has waited for it, and a stopped
// one has put its own done in place.
func (f *Followers) ended(rank string, done chan struct{}) {
	close(done)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ending[rank] == done {
		delete(f.ending, rank)
	}
}

// start follows a rank once its earlier follower has ended. The caller holds f.mu.
func (f *Followers) start(s Source, before <-chan struct{}) {
	endpoint, err := endpointOf(s.Endpoint, s.Rank)
	var replay events.Endpoint
	if err == nil {
		replay, err = endpointOf(s.Replay, s.Rank)
	}
	if err != nil {
		// Check does not know of ranks that the engine's metrics name.
		f.o.Logger.Error("KV events are not followed", "node", s.Name, "error", err)
		return
	}
	ctx, stop := context.WithCancel(f.life)
	var adapter func(name []byte)
	if f.o.Adapter != nil {
		adapter = func(name []byte) { f.o.Adapter(s.Node, name) }
	}
	r := &running{stop: stop, done: make(chan struct{}), Follower: events.New(events.Options{
		Engine: s.Name, Endpoint: endpoint, Replay: replay, Model: func() string { return f.o.Model(s.Node) },
		Adapter: adapter,
		Sink:    f.index, Logger: f.o.Logger.With("node", s.Name),
	})}
	f.running[s] = r
	f.wg.Go(func() {
		defer f.ended(s.Name, r.done)
		if before != nil {
			<-before
		}
		if ctx.Err() == nil {
			r.Run(ctx)
		}
	})
}

// Each calls call for every followed engine, with the sum over its ranks.
func (f *Followers) Each(call func(node string, s *Stats)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]*Stats{}
	for s, r := range f.running {
		stats := r.Stats()
		if sum := all[s.Node]; sum != nil {
			sum.Add(&stats)
		} else {
			all[s.Node] = &stats
		}
	}
	for node, stats := range all {
		call(node, stats)
	}
}

// Watch implements holdings.Watch.
func (f *Followers) Watch(ctx context.Context, r *cognitorav1.WatchRequest) (holdings.Stream, error) {
	w := feed.NewReader(f.index, r)
	context.AfterFunc(ctx, w.Close)
	return &watchReader{ctx, w}, nil
}

// watchReader reads a watch until its context ends.
type watchReader struct {
	ctx context.Context
	*feed.Reader
}

// Recv reads the next message.
func (s *watchReader) Recv() (*cognitorav1.WatchResponse, error) { return s.Next(s.ctx) }
