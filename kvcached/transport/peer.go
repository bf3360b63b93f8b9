package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Lane is a way to reach a peer.
type Lane string

// The lanes.
const (
	Auto Lane = "auto" // QUIC; TLS if large pulls show that TLS is faster, or if QUIC does not get through
	QUIC Lane = "quic"
	TLS  Lane = "tls"
	RDMA Lane = "rdma" // for reads from the peer's memory; never in a Target
)

// PoolOptions are the options of NewPool.
type PoolOptions struct {
	Identity  *pki.Identity // must be given
	Logger    *slog.Logger  // nil: slog.Default()
	Tuning    Tuning
	Bandwidth *Bandwidth // nil: no caps

	MaxPeers int // peers at a time; 0: MaxHosts. A further one closes the one that was used least recently
	Stripes  int // QUIC connections per peer, each with its own UDP socket; 0: 4
	TLSConns int // TLS connections per peer; 0: 16. Further operations wait
	// Idle is how long a TLS connection may be unused before it is closed; 0: 1 min. It is less
	// than the peers' ServerOptions.Idle.
	Idle    time.Duration
	Timeout time.Duration // longest operation; 0: 60 s
	Stall   time.Duration // longest time for 1 MiB, or 64 KiB with caps; 0: 15 s

	Rails    *Rails // cards that read blocks from peers' memory; nil: none
	MinBlock int    // smallest block that is read by Rails, if the length is known; 0: any
	// GrantIn is the time a peer has to grant a block. After it the block comes by a stream. 0: 300
	// ms. It is less than the time in which callers expect a peer to begin.
	GrantIn time.Duration

	// Stamp returns the last purge that this side knows; nil: purges are not numbered.
	Stamp func() wire.Stamp

	// Pulled is called for each block, or part of one, that was read from a peer. It must be quick.
	// nil: no calls.
	Pulled func(over Lane, took time.Duration)

	ListenUDP func() (net.PacketConn, error)                              // nil: any port of the host
	DialTCP   func(ctx context.Context, address string) (net.Conn, error) // nil: a net.Dialer
}

func (o PoolOptions) withDefaults() PoolOptions {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Tuning = o.Tuning.withDefaults()
	o.MaxPeers, o.Stripes, o.TLSConns = orInt(o.MaxPeers, MaxHosts), orInt(o.Stripes, defaultStripes),
		orInt(o.TLSConns, 16)
	o.Idle, o.Timeout, o.Stall = orDuration(o.Idle, time.Minute), orDuration(o.Timeout, time.Minute),
		orDuration(o.Stall, 15*time.Second)
	if o.Stamp == nil {
		o.Stamp = func() wire.Stamp { return wire.Stamp{} }
	}
	o.GrantIn = orDuration(o.GrantIn, 300*time.Millisecond)
	if o.ListenUDP == nil {
		o.ListenUDP = func() (net.PacketConn, error) { return net.ListenUDP("udp", nil) }
	}
	if o.DialTCP == nil {
		o.DialTCP = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	return o
}

// Pool holds the connections to peers.
type Pool struct {
	o       PoolOptions
	budget  *receiveBudget
	request atomic.Uint64
	quic    laneCounters
	tcp     laneCounters
	grantee readCounters
	evicted atomic.Uint64

	mu     sync.Mutex
	peers  map[Target]*Peer   // at most MaxPeers
	going  map[*Peer]struct{} // peers that are not in peers any more and are being closed
	closed bool

	closing sync.WaitGroup // peers that are being closed; begun with mu held
}

// Target is the address of a peer and the way to reach it.
type Target struct {
	Address string // host:port, of UDP and TCP
	Name    string // DNS name or IP address in the peer's certificate; empty: the role kvcached is enough
	Lane    Lane   // empty: Auto
	Cards   OneSided
	Cache   string // id of the cache, for the log
}

// NewPool returns a pool without connections.
func NewPool(o PoolOptions) (*Pool, error) {
	if o.Identity == nil {
		return nil, errors.New("transport: a pool needs an identity")
	}
	o = o.withDefaults()
	return &Pool{o: o, budget: newReceiveBudget(o.Tuning, o.MaxPeers*o.Stripes), peers: map[Target]*Peer{},
		going: map[*Peer]struct{}{}}, nil
}

// Close ends all connections and running operations, and waits for the pool's goroutines.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	all := slices.AppendSeq(slices.Collect(maps.Values(p.peers)), maps.Keys(p.going))
	p.peers = nil
	p.mu.Unlock()
	for _, peer := range all {
		p.closing.Go(peer.close)
	}
	p.closing.Wait()
	return nil
}

// Peer returns the peer of a target. The first operation dials. If the peer is evicted for another
// one, its operations fail with ErrClosed.
func (p *Pool) Peer(t Target) (*Peer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if peer := p.peers[t]; peer != nil {
		return peer, nil
	}
	peer, err := p.newPeer(t)
	if err != nil {
		return nil, err
	}
	if len(p.peers) >= p.o.MaxPeers {
		p.evict()
	}
	p.peers[t] = peer
	return peer, nil
}

func (p *Pool) newPeer(t Target) (*Peer, error) {
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		return nil, err
	}
	secure, err := clientTLS(p.o.Identity, t.Name)
	if err != nil {
		return nil, err
	}
	log := p.o.Logger.With("cache", t.Cache, "address", t.Address)
	peer := &Peer{pool: p, target: t}
	peer.choice.init(t.Lane, log, [2]*laneCounters{overQUIC: &p.quic, overTLS: &p.tcp})
	on := func(o opener, c *laneCounters, stripes int) lane {
		return &streams{opener: o, caps: p.o.Bandwidth, stall: p.o.Stall, timeout: p.o.Timeout, request: &p.request,
			stamp: p.o.Stamp, count: c, stripes: stripes}
	}
	if t.Lane != TLS {
		peer.lanes[overQUIC] = on(p.newQUIC(t.Address, secure), &p.quic, p.o.Stripes)
	}
	if t.Lane != QUIC {
		peer.lanes[overTLS] = on(newTLSLane(&tlsLane{address: t.Address, tls: secure, dialer: p.o.DialTCP,
			idle:    p.o.Idle,
			timeout: min(5*time.Second, p.o.Timeout), count: &p.tcp}, p.o.TLSConns), &p.tcp, 1)
	}
	if t.Cards != NoCards && p.o.Rails != nil {
		peer.grantee = newGrantee(peer, p.o.Rails, t.Cards, log, &p.grantee)
	}
	peer.used.Store(time.Now().UnixNano())
	return peer, nil
}

func (p *Pool) newQUIC(address string, secure *tls.Config) *quicLane {
	return newQUICLane(&quicLane{address: address, tls: secure, config: p.o.Tuning.config(-1, p.budget),
		budget: p.budget, socket: p.o.ListenUDP, count: &p.quic}, p.o.Stripes)
}

// Peer is another cache daemon. Its methods are safe for concurrent use. Their errors wrap the
// wire.Status of the peer's refusal, or ErrUnreachable, or the cause of ctx.
type Peer struct {
	pool    *Pool
	target  Target
	lanes   [2]lane // by index of chooser; nil: not used
	choice  chooser
	grantee *grantee     // nil: blocks come by streams only
	used    atomic.Int64 // Unix ns of the last use
	once    sync.Once    // of close

	carried [3]carried // by lane: QUIC, TLS, RDMA

	mu      sync.Mutex
	ops     int  // operations that are running
	retired bool // no operation begins any more, and the last one to end closes the peer
}

// on runs an operation on the best lane, and on the other lane if the best cannot be reached.
func (p *Peer) on(large bool, fn func(l lane, which int) error) error {
	if err := p.begin(); err != nil {
		return err
	}
	defer p.end()
	return p.over(large, fn)
}

// over is on for a caller that has begun already.
func (p *Peer) over(large bool, fn func(l lane, which int) error) error {
	which := p.choice.pick(large)
	err := p.try(which, fn)
	if errors.Is(err, ErrUnreachable) && p.choice.failed(which, err) {
		err = p.try(1-which, fn)
	}
	return err
}

// connected tells whether the peer has a connection that can be used again.
func (p *Peer) connected() bool {
	return slices.ContainsFunc(p.lanes[:], func(l lane) bool { return l != nil && l.connected() })
}

// overRDMA is the index of RDMA in carried, after those of lanes.
const overRDMA = 2

// Get pulls a block, or a part of it, into memory that g.Alloc returns.
func (p *Peer) Get(ctx context.Context, g Get) (Found, error) {
	if err := p.begin(); err != nil {
		return Found{}, err
	}
	defer p.end()
	return p.get(ctx, g)
}

// get is Get for a caller that has begun already.
func (p *Peer) get(ctx context.Context, g Get) (Found, error) {
	if p.grantee != nil && p.grantee.takes(&g) {
		start := time.Now()
		found, done, err := p.grantee.get(ctx, &g)
		switch {
		case !done:
			p.carried[overRDMA].fell.Add(1)
		case err == nil:
			p.pulled(overRDMA, found.Length, time.Since(start))
		case blamed(err):
			p.carried[overRDMA].failed.Add(1)
			p.carried[overRDMA].note(err)
		}
		if done {
			return found, err
		}
	}
	return p.pull(ctx, &g)
}

// pull is Get by streams.
func (p *Peer) pull(ctx context.Context, g *Get) (Found, error) {
	large := max(g.Length, g.Hint-g.Offset) >= largePull
	var found Found
	err := p.carry(large, func(l lane, which int) (err error) {
		start, got := time.Now(), int64(0)
		found, got, err = l.get(ctx, g)
		switch d := time.Since(start); {
		case err == nil:
			p.choice.took(which, got, d)
			p.pulled(which, int(got), d)
		case ranOut(err):
			p.choice.ranOut(which, got, d, large)
		}
		return err
	})
	return found, err
}

// ranOut tells whether err says that an operation or its connection timed out.
func ranOut(err error) bool {
	return !errors.Is(err, ErrUnreachable) && (isTimeout(err) || errors.Is(err, wire.Deadline))
}

// Put sends a block to the peer.
func (p *Peer) Put(ctx context.Context, put Put) error {
	if err := p.begin(); err != nil {
		return err
	}
	defer p.end()
	return p.carry(false, func(l lane, which int) error {
		err := l.put(ctx, &put)
		if err == nil {
			p.carried[which].puts.Add(1)
			p.carried[which].sent.Add(uint64(len(put.Payload)))
		}
		return err
	})
}

func (p *Peer) call(ctx context.Context, op wire.Op, flags wire.Flags, body []byte, got answered) error {
	return p.on(false, call(ctx, op, flags, body, got))
}

func call(ctx context.Context, op wire.Op, flags wire.Flags, body []byte, got answered) func(lane, int) error {
	return func(l lane, _ int) error { return l.call(ctx, op, flags, 0, body, got) }
}

func stat(ctx context.Context, addrs []block.Addr, out []wire.Info) func(lane, int) error {
	return call(ctx, wire.Stat, wire.Expiries, wire.AppendAddrs(nil, addrs), func(s wire.Stamp, body []byte) error {
		err := wire.ParseInfos(body, out, true)
		for i := range out {
			out[i].Stamp = s
		}
		return err
	})
}

// Stat fills in out, which has the length of addrs, at most wire.MaxBatch.
func (p *Peer) Stat(ctx context.Context, addrs []block.Addr, out []wire.Info) error {
	return p.on(false, stat(ctx, addrs, out))
}

// Delete deletes blocks and sets out[i] if addrs[i] existed. There are at most wire.MaxBatch.
func (p *Peer) Delete(ctx context.Context, addrs []block.Addr, out []bool) error {
	return p.call(ctx, wire.Delete, 0, wire.AppendAddrs(nil, addrs), func(_ wire.Stamp, body []byte) error {
		return wire.ParseBools(body, out)
	})
}

// Locate asks a keeper which hosts have the blocks. There are at most wire.MaxBatch addresses.
func (p *Peer) Locate(ctx context.Context, addrs []block.Addr) (l *wire.Locations, err error) {
	err = p.call(ctx, wire.Locate, 0, wire.AppendAddrs(nil, addrs), func(_ wire.Stamp, body []byte) (err error) {
		l, err = wire.ParseLocations(body, len(addrs))
		return err
	})
	return l, err
}

// Announce tells a keeper which blocks this host has. If snapshot is set, this host has no other
// blocks.
func (p *Peer) Announce(ctx context.Context, a *wire.Announcement, snapshot bool) (r wire.Receipt, err error) {
	var flags wire.Flags
	if snapshot {
		flags = wire.Snapshot
	}
	err = p.call(ctx, wire.Announce, flags, a.Append(nil), func(_ wire.Stamp, body []byte) (err error) {
		r, err = wire.ParseReceipt(body)
		return err
	})
	return r, err
}

// Expire sets the time at which the peer's blocks expire, in Unix ms. There are at most
// wire.MaxBatch addresses.
func (p *Peer) Expire(ctx context.Context, addrs []block.Addr, unixMS int64) error {
	o := wire.Order{Moment: unixMS, Addrs: addrs}
	return p.call(ctx, wire.Expire, 0, o.Append(nil), func(_ wire.Stamp, body []byte) error {
		_, err := wire.ParseReply(body)
		return err
	})
}

// Purge makes the peer carry out a list of purges, and returns how many blocks it removed.
func (p *Peer) Purge(ctx context.Context, list []byte) (blocks int, err error) {
	err = p.call(ctx, wire.Purge, 0, list, func(_ wire.Stamp, body []byte) error {
		r, err := wire.ParseReply(body)
		if err == nil {
			blocks = int(r.Number)
		}
		return err
	})
	return blocks, err
}

// Purges returns the list of purges that the peer knows. fresh says that the peer does not hide its
// blocks, and has read etcd's list after it was asked.
func (p *Peer) Purges(ctx context.Context) (list []byte, fresh bool, err error) {
	err = p.call(ctx, wire.Purge, 0, nil, func(_ wire.Stamp, body []byte) (err error) {
		list, fresh, err = wire.ParsePurges(body)
		return err
	})
	return list, fresh, err
}
