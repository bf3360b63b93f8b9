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

// Source is an engine with its KV events' addresses.
type Source struct {
	Node             string // id
	Endpoint, Replay string
}

// Check validates the addresses of an engine's events; replay may be empty.
func Check(endpoint, replay string) error {
	if _, err := events.ParseEndpoint(endpoint); err != nil {
		return fmt.Errorf("option kv-events: %w", err)
	}
	if replay == "" {
		return nil
	}
	at, err := events.ParseEndpoint(replay)
	if err == nil && at.Listen {
		err = errors.New("the engine listens there; leave the @ out")
	}
	if err != nil {
		return fmt.Errorf("option kv-replay: %w", err)
	}
	return nil
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
		running: map[Source]*running{}}
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

// Set replaces the followed engines. An engine in both lists is followed without a break.
func (f *Followers) Set(sources []Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = sources[:min(len(sources), maxSources)]
	if len(sources) > maxSources {
		f.o.Logger.Error("KV events are followed of so many backends only",
			"most", maxSources, "backends", len(sources))
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
	ended := map[string]chan struct{}{}
	for s, r := range f.running {
		if !wanted[s] {
			r.stop()
			ended[s.Node] = r.done
			delete(f.running, s)
		}
	}
	for s := range wanted {
		if f.running[s] == nil {
			f.start(s, ended[s.Node])
		}
	}
}

// start follows an engine once the node's earlier follower has ended. The caller holds f.mu.
func (f *Followers) start(s Source, before <-chan struct{}) {
	endpoint, err := events.ParseEndpoint(s.Endpoint)
	var replay events.Endpoint
	if err == nil && s.Replay != "" {
		replay, err = events.ParseEndpoint(s.Replay)
	}
	if err != nil {
		f.o.Logger.Error("KV events are not followed", "node", s.Node, "error", err) // despite Check
		return
	}
	ctx, stop := context.WithCancel(f.life)
	var adapter func(name []byte)
	if f.o.Adapter != nil {
		adapter = func(name []byte) { f.o.Adapter(s.Node, name) }
	}
	r := &running{stop: stop, done: make(chan struct{}), Follower: events.New(events.Options{
		Engine: s.Node, Endpoint: endpoint, Replay: replay, Model: func() string { return f.o.Model(s.Node) },
		Adapter: adapter,
		Sink:    f.index, Logger: f.o.Logger.With("node", s.Node),
	})}
	f.running[s] = r
	f.wg.Go(func() {
		defer close(r.done)
		if before != nil {
			<-before
		}
		r.Run(ctx)
	})
}

// Each calls call for every followed engine.
func (f *Followers) Each(call func(node string, s *Stats)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, r := range f.running {
		stats := r.Stats()
		call(s.Node, &stats)
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
