package kvcached

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	rpcstatus "google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// purged is a fleet under load in which blocks are purged. A moment is a number from a clock that
// ticks with each event.
type purged struct {
	t     *testing.T
	site  site
	etcd  *clientv3.Client
	r     *rand.Rand
	hosts [3]*purgedHost
	clock atomic.Int64
	made  sync.Map // by value: moment after its SET was answered

	mu     sync.Mutex
	models [len(purgedModels)]int64 // by model: moment when the last finished purge began

	gets, hits, purges, unconfirmed, old atomic.Int64
}

// purgedHost is one host, which restarts now and then.
type purgedHost struct {
	*Daemon
	settings Config
	stop     func() error
	use      sync.RWMutex // locked for writing while the host is away or changes

	mu     sync.Mutex
	models [len(purgedModels)]int64 // by model: blocks made before this moment must not be served
}

// purgedModels are the models of the blocks. Blocks of the last model have keys that contain the
// model's name, as LMCache's keys do.
var purgedModels = [...]string{"meta/one", "two", "meta/keys"}

func (p *purged) key(model, i int) string {
	if model == len(purgedModels)-1 {
		return fmt.Sprintf("%s@1@0@%x@bfloat16", purgedModels[model], i)
	}
	space := testSpace
	space.Model = purgedModels[model]
	return block.Text(space.String(), block.Addr{Digest: block.Seed("m", "", fmt.Sprint(i)), Model: space.ID()})
}

// begin starts a host. The host must not serve blocks that the fleet has purged before the start.
func (p *purged) begin(h *purgedHost) {
	p.mu.Lock()
	models := p.models
	p.mu.Unlock()
	d, err := New(h.settings)
	for range 20 { // a free UDP port need not be free for TCP
		if err == nil {
			break
		}
		d, err = New(h.settings)
	}
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, context.Background()) }()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Daemon, h.models = d, models
	h.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
}

// load sets and gets at random until end is closed.
func (p *purged) load(seed uint64, end <-chan struct{}) {
	r := rand.New(rand.NewPCG(seed, 7))
	for {
		select {
		case <-end:
			return
		case <-time.After(3 * time.Millisecond): // each command takes a port
		}
		h, model := p.hosts[r.IntN(3)], r.IntN(len(purgedModels))
		if !h.use.TryRLock() {
			continue
		}
		key := p.key(model, r.IntN(8))
		if r.IntN(3) == 0 {
			p.set(h, key)
		} else {
			p.get(h, model, key)
		}
		h.use.RUnlock()
	}
}

func (p *purged) set(h *purgedHost, key string) {
	value := fmt.Sprint(p.clock.Add(1))
	got, err := redisAsked(h.At("resp"), "SET "+key+" "+value)
	if err != nil || got[0] != "+OK" {
		p.t.Error("SET:", got, err)
	}
	p.made.Store(value, p.clock.Add(1))
}

func (p *purged) get(h *purgedHost, model int, key string) {
	h.mu.Lock()
	floor := h.models[model]
	h.mu.Unlock()
	p.gets.Add(1)
	// The first GET may bring the block from SSD or another host to RAM, so the second reads RAM.
	got, err := redisAsked(h.At("resp"), "GET "+key, "GET "+key)
	if err != nil {
		p.t.Error("GET:", err)
		return
	}
	for _, value := range got {
		if made, there := p.made.Load(value); value != "$-1" && there {
			p.hits.Add(1)
			if made.(int64) < floor {
				p.old.Add(1)
				p.t.Errorf("%s serves %s of %d, which was purged at %d", h.config.cacheID(), key, made, floor)
			}
		}
	}
}

// purge purges the blocks of one model, or all blocks, and records which hosts have confirmed the
// purge.
func (p *purged) purge(h *purgedHost) {
	model := p.r.IntN(len(purgedModels) + 1)
	request := &pb.PurgeRequest{Everything: model == len(purgedModels)}
	if !request.Everything {
		request.Model = purgedModels[model]
	}
	began := p.clock.Add(1)
	conn, err := grpc.NewClient("unix://"+h.At("grpc-sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	p.must(err)
	defer conn.Close()
	answer, err := pb.NewKvClient(conn).Purge(p.t.Context(), request)
	if err != nil {
		p.unconfirmed.Add(1)
		for _, detail := range rpcstatus.Convert(err).Details() {
			answer = detail.(*pb.PurgeResponse)
		}
	}
	if answer == nil {
		return // etcd was not reached
	}
	p.purges.Add(1)
	raise := func(models *[len(purgedModels)]int64) {
		for i := range models {
			if request.Everything || i == model {
				models[i] = max(models[i], began)
			}
		}
	}
	p.mu.Lock()
	raise(&p.models)
	p.mu.Unlock()
	for _, host := range answer.Hosts {
		for _, h := range p.hosts {
			h.mu.Lock()
			if host.Error == "" && h.settings.Daemon.CacheID == host.Host {
				raise(&h.models)
			}
			h.mu.Unlock()
		}
	}
}

// schedule runs some random events, one after the other or at the same time.
func (p *purged) schedule() {
	for range 2 + p.r.IntN(3) {
		i := p.r.IntN(3)
		h, other := p.hosts[i], p.hosts[(i+1+p.r.IntN(2))%3]
		switch p.r.IntN(6) {
		case 0, 1:
			p.purge(h)
		case 2: // purges while a host is away
			h.use.Lock()
			p.must(h.stop())
			for range p.r.IntN(3) {
				p.purge(other)
			}
			p.begin(h)
			h.use.Unlock()
		case 3: // a purge while a host starts
			h.use.Lock()
			p.must(h.stop())
			started := make(chan struct{})
			go func() {
				p.begin(h)
				close(started)
			}()
			p.purge(other)
			<-started
			h.use.Unlock()
		case 4: // etcd loses its data
			_, err := p.etcd.Delete(p.t.Context(), cluster.Root, clientv3.WithPrefix())
			p.must(err)
		case 5: // etcd loses its data while a host is away
			h.use.Lock()
			p.must(h.stop())
			p.purge(other)
			_, err := p.etcd.Delete(p.t.Context(), cluster.Root, clientv3.WithPrefix())
			p.must(err)
			p.begin(h)
			h.use.Unlock()
		}
	}
}

func (p *purged) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestPurgeSchedules runs a fleet under load while hosts stop, start and lose etcd's data. No host
// serves a block that is older than a purge which the host has confirmed. A host also serves no
// block that is older than a purge before the host's start. CGN_PURGE_SCHEDULES sets the number of
// random schedules.
func TestPurgeSchedules(t *testing.T) {
	t.Parallel()
	schedules := 8
	if n, err := strconv.Atoi(os.Getenv("CGN_PURGE_SCHEDULES")); err == nil {
		schedules = n
	}
	p := &purged{t: t, site: newSite(t), r: rand.New(rand.NewPCG(uint64(schedules), 3))}
	var err error
	p.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{p.site.etcd}})
	p.must(err)
	defer p.etcd.Close()
	for i, id := range []string{"a", "b", "c"} {
		h := &purgedHost{}
		h.settings, _ = settings(t, t.TempDir(), p.site.join(id, func(c *Config) {
			c.Daemon.Heartbeat = config.Duration(200 * time.Millisecond)
		}))
		p.hosts[i] = h
		p.begin(h)
	}
	end := make(chan struct{})
	var loads sync.WaitGroup
	for i := range uint64(4) {
		loads.Go(func() { p.load(i, end) })
	}
	for i := range schedules {
		p.schedule()
		if (i+1)%100 == 0 {
			t.Logf("%d schedules: %d purges, %d not confirmed by all, %d of %d GETs found something, %d of it old", i+1,
				p.purges.Load(), p.unconfirmed.Load(), p.hits.Load(), 2*p.gets.Load(), p.old.Load())
		}
	}
	close(end)
	loads.Wait()
	for _, h := range p.hosts {
		p.must(h.stop())
	}
	t.Logf("%d purges, %d not confirmed by all, %d of %d GETs found something", p.purges.Load(), p.unconfirmed.Load(),
		p.hits.Load(), 2*p.gets.Load())
	if p.hits.Load() == 0 {
		t.Error("nothing was ever found")
	}
}

// TestStartsWithoutEtcd checks that a host which was away during a purge gets the purge from a
// cache of its last run, without etcd. Reads are misses until a cache of the last run reaches etcd.
func TestStartsWithoutEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	etcd, err := etcdserver.Start(t.TempDir(), freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(etcd.Close)
	defer end()
	s.etcd = etcd.Endpoint()
	a, _ := s.host(t, "a", nil)
	c, log := settings(t, t.TempDir(), s.join("b", nil))
	b, stop := begin(t, c)
	meet(t, 2, a, b)
	old, kept := block.Text(testSpace.String(), testAddr(1)), "kept"
	for _, key := range []string{old, kept} {
		set(t, b, key, []byte("1"))
	}
	awaitThat(t, "both are on SSD", func() bool { // a second use sends a block to SSD
		redis(t, b.At("resp"), "GET "+old, "GET "+kept)
		return b.store.Stats().SSD.Records == 2
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "b has left", func() bool { return a.view.Load().Stats().Members == 1 })
	if _, err := kv(t, a).Purge(t.Context(), &pb.PurgeRequest{Model: testSpace.Model}); err != nil {
		t.Fatal(err)
	}
	c.Etcd.Endpoints = []string{"127.0.0.1:1"}
	b, stop = begin(t, c)
	awaitThat(t, "b has the purges", func() bool { return !b.purges.pending() })
	if got := once(t, b, "GET "+old) + once(t, b, "GET "+kept); got != "$-11" {
		t.Error(got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	end()
	awaitThat(t, "etcd is lost", func() bool { return a.member.state() == "lost" })
	const gone = "the list of purges is gone"
	if err := os.Remove(filepath.Join(c.Daemon.Data, purge.File)); err != nil || strings.Contains(log.String(), gone) {
		t.Error(err, log)
	}
	if b, _ = begin(t, c); !strings.Contains(log.String(), gone) {
		t.Errorf("no warning:\n%s", log)
	}
	if list, fresh, err := b.view.Load().PurgesOf(t.Context(), &b.purges.remembered()[0]); err != nil || fresh {
		t.Errorf("%+v, %v: purges that etcd had at some time count as read", list, err)
	}
	if got := once(t, b, "GET "+kept); got != "$-1" || !b.purges.pending() {
		t.Error(got)
	}
}

// TestAnotherHostWritesFirst checks a host that was away during a purge. Meanwhile etcd has lost
// its data, and a host that knows no purge has written a new list. The first host still learns of
// the purge at its start.
func TestAnotherHostWritesFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	etcd, err := etcdserver.Start(dir, freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	s.etcd = etcd.Endpoint()
	a, _ := s.host(t, "a", nil)
	c, _ := settings(t, t.TempDir(), s.join("c", nil))
	away, stop := begin(t, c)
	meet(t, 2, a, away)
	old := block.Text(testSpace.String(), testAddr(1))
	set(t, away, old, []byte("1"))
	awaitThat(t, "the block is on SSD", func() bool {
		once(t, away, "GET "+old)
		return away.store.Stats().SSD.Records == 1
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "c has left", func() bool { return a.view.Load().Stats().Members == 1 })
	if _, err := kv(t, a).Purge(t.Context(), &pb.PurgeRequest{Everything: true}); err != nil {
		t.Fatal(err)
	}
	etcd.Close()
	etcd, err = etcdserver.Start(t.TempDir(), strings.TrimPrefix(s.etcd, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	b, _ := s.host(t, "b", nil)
	awaitThat(t, "b has begun a list", func() bool { return !b.purges.pending() })
	back, _ := begin(t, c)
	for range 200 {
		if got := once(t, back, "GET "+old); got != "$-1" {
			t.Fatal("a purged block is served: ", got)
		}
		<-time.After(5 * time.Millisecond)
	}
	awaitThat(t, "c has the purges", func() bool { return !back.purges.pending() })
	if got := once(t, back, "GET "+old); got != "$-1" {
		t.Error(got)
	}
}
