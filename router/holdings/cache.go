package holdings

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/cognitora/dataplane/internal/await"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/residency"
)

// cache is the copy of one daemon's residency. The cache's run goroutine owns all fields, except
// where a field says otherwise.
type cache struct {
	m         *Map
	id        string
	addresses []string // addresses by which nodes name the daemon
	target    string   // gRPC target
	setting   string   // that names the daemon; empty: etcd does
	log       *slog.Logger
	stop      context.CancelFunc

	exchanging          atomic.Bool            // the daemon exchanges blocks with those of other hosts
	pulled              atomic.Uint64          // bits of the bytes per second that it gets from them; 0: not measured
	until               atomic.Int64           // until then the daemon's data counts, Unix ns; 0: not yet complete
	trouble             atomic.Pointer[string] // why the stream cannot be read; nil: it runs, or begins
	reconnects, resyncs atomic.Uint64
	leftOut             atomic.Uint64                        // blocks without a place for their configuration
	stock               atomic.Pointer[stock]                // what requests read; never nil
	client              atomic.Pointer[cognitorav1.KvClient] // set while the daemon is followed
	turns               turns                                // of promotions; for any goroutine
	open                Watch                                // nil: gRPC to target

	engines map[uint32]*engine // by holder number; guarded by m.mu
	media   bool               // an engine of the host has reported blocks outside its own memory
	left    bool               // guarded by m.mu
	// roomless are the nodes of engines without a place in the index, by holder number. crowded
	// says that a configuration got none. Both are guarded by m.mu.
	roomless map[uint32]string
	crowded  bool

	epoch, last uint64
	synced      bool   // all data up to last is known
	fresh       bool   // synced, and the stream runs
	own         uint32 // holder number of the daemon's tiers
	held        []*held
	readers     map[string][]name // see stock
	present     map[name]name     // configurations with blocks, and their models; empty: the daemon has not said
	unlisted    bool              // the daemon has blocks of more configurations than it says
	numbers     map[residency.Ref]uint64
	batches     map[residency.Ref]*batch
}

// engine is one incarnation of an engine that reports its blocks. All fields but model are
// immutable.
type engine struct {
	cache *cache
	node  string
	epoch uint64
	ref   residency.Ref // holder for the engine's own memory
	// near is the holder for own memory or host memory. far is the holder for own memory, host
	// memory or disk. An engine that reports only its own memory has neither, because each holder
	// makes index lookups slower.
	media     bool
	near, far residency.Ref
	model     atomic.Pointer[string] // model of the engine's blocks; nil: no block was reported yet
}

// refs returns the engine's holders in the index.
func (e *engine) refs() []residency.Ref {
	if !e.media {
		return []residency.Ref{e.ref}
	}
	return []residency.Ref{e.ref, e.near, e.far}
}

// join registers an incarnation of an engine in the index. join returns nil if the index has no
// room; what the engine has is then unknown until its daemon's stream begins anew. The caller holds
// c.m.mu.
func (c *cache) join(node string, epoch uint64) *engine {
	if room := c.m.index.Room(); room < 1 || c.media && room < 3 {
		return nil
	}
	e := &engine{cache: c, node: node, epoch: epoch, ref: c.m.index.Join(), media: c.media}
	if e.media {
		e.near, e.far = c.m.index.Join(), c.m.index.Join()
	}
	return e
}

func newCache(m *Map, id string, addresses []string, target string) *cache {
	c := &cache{
		m: m, id: id, addresses: addresses, target: target,
		engines: map[uint32]*engine{}, roomless: map[uint32]string{},
		numbers: map[residency.Ref]uint64{}, batches: map[residency.Ref]*batch{},
	}
	c.log = m.o.Logger.With("cache", c.id, "target", c.target)
	if m.o.Setting != nil && m.static[id] != "" {
		c.setting = m.o.Setting(id)
		c.log = c.log.With("setting", c.setting)
	}
	c.stock.Store(&stock{of: c})
	return c
}

// run follows the daemon until ctx ends.
func (c *cache) run(ctx context.Context) {
	defer c.until.Store(0)
	if c.open == nil {
		conn, err := c.dial()
		if err != nil {
			c.fails(err, "residency stream cannot be read, so what this cache holds does not count in routing",
				time.Time{})
			return
		}
		defer conn.Close()
		client := cognitorav1.NewKvClient(conn)
		c.client.Store(&client)
		defer c.client.Store(nil)
		c.open = called(client)
	}
	var said time.Time
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryLast) {
		err := c.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.fresh {
			wait, said = retryFirst, time.Time{}
		}
		if err != nil && !errors.Is(err, errMedia) {
			said = c.fails(err, "residency stream broke, reading it again", said)
		}
		if c.fresh {
			c.fresh = false
			c.until.Store(time.Now().Add(freshFor).UnixNano())
		}
		if errors.Is(err, errStream) || errors.Is(err, errMedia) {
			c.synced = false // the next stream starts with a snapshot, not with the missing changes
			c.until.Store(0)
		}
		c.reconnects.Add(1)
		await.About(ctx, wait)
	}
}

// sayEvery is the time between two log lines about a stream that cannot be read.
const sayEvery = 10 * time.Minute

// fails notes why the stream cannot be read, and logs it unless the log has said so lately. fails
// returns the time of the last line.
func (c *cache) fails(err error, message string, said time.Time) time.Time {
	c.trouble.Store(new(err.Error()))
	if time.Since(said) < sayEvery {
		return said
	}
	c.log.Warn(message, "error", err)
	return time.Now()
}

// ErrNoTLS says that a daemon is on another host and that no CA is set to check its certificate.
var ErrNoTLS = errors.New("holdings: the cache is not on a unix socket and upstream_tls.ca is not set")

// silence bounds how long a daemon that hangs, or that cannot be reached any more, counts as live.
var silence = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}

func (c *cache) dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	target := "passthrough:///" + c.target
	if strings.HasPrefix(c.target, "unix://") {
		target = c.target
	} else if c.m.o.TLS == nil {
		return nil, ErrNoTLS
	} else {
		creds = credentials.NewTLS(c.m.o.TLS.Clone())
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithKeepaliveParams(silence),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// called returns the Watch of a daemon that is reached by gRPC.
func called(client cognitorav1.KvClient) Watch {
	return func(ctx context.Context, r *cognitorav1.WatchRequest) (Stream, error) {
		stream, err := client.Watch(ctx, r)
		if err == nil {
			_, err = stream.Header() // comes when the daemon has accepted the request
		}
		return stream, err
	}
}

// watch reads one stream to its end.
func (c *cache) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &cognitorav1.WatchRequest{}
	if c.synced {
		request.Epoch, request.After = c.epoch, c.last
	}
	stream, err := c.open(ctx, request)
	if err != nil {
		return err
	}
	c.freshen()
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := c.apply(message); err != nil {
			return err
		}
		c.freshen()
	}
}

// live says whether the daemon's data is complete and up to date.
func (c *cache) live() bool {
	until := c.until.Load()
	return until == math.MaxInt64 || until != 0 && time.Now().UnixNano() < until
}

// exchanges says whether the daemon exchanges blocks with those of other hosts.
func (c *cache) exchanges() bool { return c.exchanging.Load() }

// fetches returns the seconds in which so many bytes of another host come to this one, at the
// measured speed; 0: not measured, or no bytes.
func (c *cache) fetches(bytes float64) float32 {
	speed := math.Float64frombits(c.pulled.Load())
	if speed == 0 {
		return 0
	}
	return float32(bytes / speed)
}

// supply records what the daemon says about blocks of other hosts. An implausible speed counts as
// not measured.
func (c *cache) supply(w *cognitorav1.WatchResponse) {
	speed := w.PulledBytesPerSecond
	if !(speed >= slowestPull && speed <= fastestPull) { // true for NaN
		speed = 0
	}
	c.exchanging.Store(w.Shares)
	c.pulled.Store(math.Float64bits(speed))
}

// These bound a plausible speed of pulls, in bytes per second.
const (
	slowestPull = 1
	fastestPull = 1 << 50
)

// freshen lets requests use the data, once it is complete.
func (c *cache) freshen() {
	if c.synced && !c.fresh {
		c.fresh = true
		c.until.Store(math.MaxInt64)
		if c.trouble.Swap(nil) != nil {
			c.log.Info("residency stream is read again")
		}
	}
}
