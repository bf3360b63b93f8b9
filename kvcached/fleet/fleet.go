// Package fleet joins the cache daemons of all hosts. A host that misses a block pulls the block
// from a host that has it.
//
// Each address has a keeper: one host that records which hosts hold the block (keeper.go).
// Rendezvous hashing over the hosts in etcd selects the keeper. Every host announces to the keepers
// which blocks it gets and loses (announce.go). An announcement takes about a millisecond. Another
// host may see a miss before an announcement arrives. A written block stays on the host that was
// asked to write it. A pulled block is a copy like any other.
//
// A client's key names content, so the values of two hosts under one key are interchangeable. SET,
// DEL and EXPIRE act on this host and send notices to the other holders without waiting
// (notice.go). An old value is gone a moment later if the hosts reach each other. A host that was
// away may bring an old value back. A listing of keys covers one host. A purge covers all hosts
// (purge.go).
package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/internal/logging"
	"github.com/cognitora/dataplane/internal/shares"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Bounds that no option changes.
const (
	maxQueue   = 1 << 16 // changes that wait to be announced, in all and for each keeper
	maxMembers = transport.MaxHosts
	maxPulls   = 64               // pulls at a time; a Get that needs a further pull is a miss
	hotUses    = 8                // uses that make a block hot
	quietFor   = 10 * time.Second // shortest time between two warnings of one subject
)

// errForgot says that a keeper lacks changes that it had received before.
var errForgot = errors.New("fleet: the keeper of locations has started anew")

// ErrUnknownHost says that the fleet has no such host.
var ErrUnknownHost = errors.New("fleet: no such host")

// Options of New.
type Options struct {
	Store *store.Store    // store of this host. Required
	Pool  *transport.Pool // connections to the other hosts. Required
	// Ledger has the purges of this host. Required.
	Ledger *purge.Ledger
	// Register is the fleet's list of purges. Required.
	Register Register
	Self     string // this host's cache id. Required
	Epoch    uint64 // number of this start of the daemon, larger than those of earlier starts. Required

	// LocateTimeout bounds a question to a keeper. After this time the block is a miss. 0: 100 ms.
	LocateTimeout time.Duration
	// AnswerTimeout is the time after which a silent host is left out: no more requests go to it
	// until it answers a probe. 0: 200 ms.
	AnswerTimeout time.Duration
	// HeadTimeout bounds the wait for the head of the answer to a request for a block. The source
	// then counts as failed. 0: 2 s.
	HeadTimeout time.Duration
	// PeerBytes bounds the bytes of blocks of known length that are pulled from one host at a time.
	// Further pulls wait. 0: there is no bound. A bound above the share that the other host grants
	// causes refusals.
	PeerBytes int64
	// PullTimeout bounds the transfer of a block. 0: 10 s.
	PullTimeout time.Duration
	// MaxLocations is the number of addresses whose locations this host keeps, at about 100 bytes
	// each. Other hosts do not find blocks at further addresses. 0: 2^20.
	MaxLocations int
	// Replicas is the number of other hosts that get a copy of a block after its hotUses-th use
	// here. 0: there are no copies.
	Replicas int
	Logger   *slog.Logger // nil: slog.Default()
}

// View is this host's store as part of the fleet. Get, Stat, StatAll, Describe and PurgeAll cover
// all hosts. Delete and SetExpiry act here and send notices to the other hosts.
type View struct {
	Store *store.Store // store of this host

	o      Options
	roster atomic.Pointer[roster]
	doubts doubts
	seldom logging.Seldom
	keeper *keeper

	changes    chan block.Addr // addresses that changed; their state is looked up when it is announced
	overrun    atomic.Bool     // changes were lost, so all links send a snapshot
	replicates chan block.Addr

	notices   *notices
	refreshes refreshes
	name      sync.Once
	named     chan struct{} // closed once etcd has listed all members including this host

	mu      sync.Mutex
	pulls   map[block.Addr]*pull
	running context.Context // nil before and after Run
	wg      sync.WaitGroup  // goroutines of pulls and probes

	names *names

	pace   pace
	awaits *shares.Shares // of the calls of Await that may wait, by the host that is to store the blocks
	counts counts
}

// counts are the counters behind Stats.
type counts struct {
	pulled, pulledBytes, pullMisses, pullErrors, pullsRefused atomic.Uint64
	pullsBusy, pullsFailed, pullRetries, leftOut, probes      atomic.Uint64
	located, locateErrors, unknownNamespaces                  atomic.Uint64
	announced, resyncs, overruns                              atomic.Uint64
	replicated, replicasDropped                               atomic.Uint64
	dropped, differed, noticesLost                            atomic.Uint64
	awaited, awaitedInVain, awaitsRefused                     atomic.Uint64
}

// Stats counts the events of a View and describes its state.
type Stats struct {
	Pulled            uint64 // blocks pulled from other hosts
	PulledBytes       uint64
	PulledPerSecond   int64  // bytes, while blocks came; see View.PulledPerSecond
	PullMisses        uint64 // pulls that found the block on no host
	PullsFailed       uint64 // pulls that failed on every host that was asked
	PullsBusy         uint64 // pulls that ended because the block's hosts were busy
	PullRetries       uint64 // times that a busy host was asked again
	PullErrors        uint64 // failed requests for a block to one host; the pull tries another host
	PullsRefused      uint64 // pulls refused because maxPulls were running
	Awaited           uint64 // blocks found by an Await
	AwaitedInVain     uint64 // blocks that no host had when an Await ended
	Awaiting          int64  // calls of Await that wait now
	AwaitsRefused     uint64 // calls of Await that did not wait, because as many others of their host did as may
	Located           uint64 // questions to keepers for locations
	LocateErrors      uint64 // questions for locations without an answer
	Namespaces        int64  // known texts of namespaces
	NamespacesDropped uint64 // texts of namespaces that were forgotten because of newer ones
	UnknownNamespaces uint64 // pulls that ended because this host did not know the namespace's text
	Announced         uint64 // changes announced to keepers
	Resyncs           uint64 // snapshots sent to keepers
	Overruns          uint64 // times that changes came too fast to be announced one by one
	Replicated        uint64 // hot blocks copied to another host
	ReplicasDropped   uint64 // hot blocks not copied, because of an error or of too many
	Dropped           uint64 // values that other hosts dropped because their key was set or deleted here
	Differed          uint64 // dropped values that differed from the value set here
	Notices           int64  // keys whose notice waits or is being sent
	NoticesLost       uint64 // notices that did not reach some host
	Named             int64  // 1: etcd has listed all caches including this one
	Hidden            int64  // 1: reads are misses, because the purges are not read yet
	Purges            int64  // purges in the list
	PurgeRevision     int64  // number of the last purge that was carried out
	LeftOut           int64  // hosts that are left out because they do not answer
	TimesLeftOut      uint64 // times that a host was left out
	Probes            uint64 // probes sent to silent hosts
	Members           int64  // hosts in the fleet including this one
	Locations         int64  // addresses whose locations this host keeps
	LocationsRefused  uint64 // addresses that this host had no room for
}

// Stats returns a snapshot.
func (v *View) Stats() Stats {
	c := &v.counts
	kept, refused := v.keeper.stats()
	names, forgotten := v.names.stats()
	s := Stats{
		Pulled: c.pulled.Load(), PulledBytes: c.pulledBytes.Load(), PullMisses: c.pullMisses.Load(),
		PullErrors:   c.pullErrors.Load(),
		PullsRefused: c.pullsRefused.Load(), Located: c.located.Load(), LocateErrors: c.locateErrors.Load(),
		Namespaces: names, NamespacesDropped: forgotten, UnknownNamespaces: c.unknownNamespaces.Load(),
		Announced: c.announced.Load(), Resyncs: c.resyncs.Load(), Overruns: c.overruns.Load(),
		Replicated: c.replicated.Load(), ReplicasDropped: c.replicasDropped.Load(), Dropped: c.dropped.Load(),
		Differed: c.differed.Load(), Notices: v.notices.waiting(), NoticesLost: c.noticesLost.Load(),
		PullsBusy: c.pullsBusy.Load(), PullsFailed: c.pullsFailed.Load(), PullRetries: c.pullRetries.Load(),
		Awaited: c.awaited.Load(), AwaitedInVain: c.awaitedInVain.Load(), AwaitsRefused: c.awaitsRefused.Load(),
		Awaiting: int64(v.awaits.Held()),
		LeftOut:  v.doubts.leftOut(), TimesLeftOut: c.leftOut.Load(), Probes: c.probes.Load(),
		PulledPerSecond: int64(v.PulledPerSecond()),
		Members:         int64(len(v.roster.Load().members)), Locations: kept, LocationsRefused: refused,
	}
	if v.Known() {
		s.Named = 1
	}
	if v.hidden() {
		s.Hidden = 1
	}
	s.Purges, s.PurgeRevision = int64(len(v.o.Ledger.List().Purges)), int64(v.o.Ledger.Revision())
	return s
}

// New makes a view without other hosts.
func New(o Options) (*View, error) {
	if o.Store == nil || o.Pool == nil || o.Ledger == nil || o.Register == nil || o.Self == "" || o.Epoch == 0 {
		return nil, errors.New("fleet: Store, Pool, Ledger, Register, Self and Epoch are required")
	}
	if o.LocateTimeout <= 0 {
		o.LocateTimeout = 100 * time.Millisecond
	}
	if o.AnswerTimeout <= 0 {
		o.AnswerTimeout = 200 * time.Millisecond
	}
	if o.HeadTimeout <= 0 {
		o.HeadTimeout = 2 * time.Second
	}
	if o.PullTimeout <= 0 {
		o.PullTimeout = 10 * time.Second
	}
	if o.MaxLocations <= 0 {
		o.MaxLocations = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	v := &View{
		Store: o.Store, o: o, keeper: newKeeper(o.MaxLocations), changes: make(chan block.Addr, maxQueue),
		replicates: make(chan block.Addr, 1024), pulls: map[block.Addr]*pull{}, names: newNames(maxNamespaces),
		doubts: doubts{share: o.PeerBytes, hosts: map[string]*health{}}, notices: newNotices(),
		named: make(chan struct{}), awaits: shares.New(maxAwaits),
		refreshes: refreshes{reading: semaphore.NewWeighted(1)}, seldom: logging.Seldom{Every: quietFor},
	}
	v.roster.Store(newRoster(o.Self, nil))
	return v, nil
}

// Named says that SetMembers has had all members that etcd lists, including this host.
func (v *View) Named() { v.name.Do(func() { close(v.named) }) }

// Known tells whether Named was called.
func (v *View) Known() bool {
	select {
	case <-v.named:
		return true
	default:
		return false
	}
}

// Show ends store.Options.Hidden of this host's store and announces the store's blocks.
func (v *View) Show() {
	v.Store.Show()
	v.tellAll()
}

// tellAll makes all links send a snapshot.
func (v *View) tellAll() {
	v.overrun.Store(true)
	select {
	case v.changes <- block.Addr{}:
	default:
	}
}

// alone tells whether there is no other host, or the store is still hidden.
func (v *View) alone() bool { return len(v.roster.Load().members) < 2 || v.hidden() }

// hidden tells whether the store is still hidden, so that reads are misses.
func (v *View) hidden() bool {
	select {
	case <-v.Store.Shown():
		return false
	default:
		return true
	}
}

// Get holds a block. The block is pulled from another host if this host does not have it.
// store.ErrMiss: no host has the block.
func (v *View) Get(ctx context.Context, a block.Addr) (*store.Block, error) {
	b, err := v.Store.Get(ctx, a)
	if err == nil {
		v.hot(b)
		return b, nil
	}
	if !errors.Is(err, store.ErrMiss) || v.alone() {
		return nil, err
	}
	if err := v.Pull(ctx, a, ""); err != nil {
		return nil, err
	}
	return v.Store.Get(ctx, a)
}

// Warm brings a block to this host's RAM, from its SSD or from another host. Warm counts as a use
// of the block, but neither as a hit nor as a miss.
func (v *View) Warm(ctx context.Context, a block.Addr) error {
	err := v.Store.Warm(ctx, a)
	if !errors.Is(err, store.ErrMiss) || v.alone() {
		return err
	}
	if err := v.Pull(ctx, a, ""); err != nil {
		return err
	}
	return v.Store.Warm(ctx, a)
}

// Stat returns the Info of a block on any host. The Tiers are store.Remote if only other hosts have
// the block.
func (v *View) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	var out [1]store.Info
	if err := v.StatAll(ctx, []block.Addr{a}, out[:]); err != nil {
		return store.Info{}, err
	}
	if out[0].Tiers == 0 {
		return store.Info{}, store.ErrMiss
	}
	return out[0], nil
}

// Describe returns all that is known of a block. The block is pulled from another host if this host
// does not have it.
func (v *View) Describe(ctx context.Context, a block.Addr) (store.Info, error) {
	i, err := v.Store.Describe(ctx, a)
	if !errors.Is(err, store.ErrMiss) || v.alone() {
		return i, err
	}
	if err := v.Pull(ctx, a, ""); err != nil {
		return store.Info{}, err
	}
	return v.Store.Describe(ctx, a)
}

// StatAll is Stat for many addresses: out[i] has no Tiers if no host has addrs[i].
func (v *View) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	if err := v.Store.StatAll(ctx, addrs, out); err != nil || v.alone() {
		return err
	}
	var missing []int
	for i := range out {
		if out[i].Tiers == 0 {
			missing = append(missing, i)
		}
	}
	for some := range slices.Chunk(missing, wire.MaxBatch) {
		v.statRemote(ctx, addrs, out, some)
	}
	return nil
}

// statRemote asks the holders of addrs[i], for each i in missing, and fills in out[i].
func (v *View) statRemote(ctx context.Context, addrs []block.Addr, out []store.Info, missing []int) {
	asked := make([]block.Addr, len(missing))
	for i, at := range missing {
		asked[i] = addrs[at]
	}
	located, _ := v.locate(ctx, asked) // an error counts as no holder
	for round := 0; len(missing) > 0; round++ {
		of := map[string][]int{} // by host: the addresses to ask that host for next
		for i, l := range located {
			if len(l) > round && out[missing[i]].Tiers == 0 {
				of[l[round].host] = append(of[l[round].host], missing[i])
			}
		}
		if len(of) == 0 {
			return
		}
		for host, at := range of {
			v.statAt(ctx, v.roster.Load().member(host), addrs, out, at)
		}
	}
}

// statAt asks one host for addrs[i], for each i in at, and fills in out[i]. A block that is older
// than a purge counts as a miss.
func (v *View) statAt(ctx context.Context, m *Member, addrs []block.Addr, out []store.Info, at []int) {
	if m == nil {
		return
	}
	asked, there := make([]block.Addr, len(at)), make([]wire.Info, len(at))
	for i := range at {
		asked[i] = addrs[at[i]]
	}
	if v.within(ctx, v.o.LocateTimeout, m, func(ctx context.Context, peer *transport.Peer) error {
		return peer.Stat(ctx, asked, there)
	}) != nil {
		return
	}
	for i, t := range there {
		if a := asked[i]; t.Tiers != 0 && !v.Bars(t.Stamp, v.nameOf(a.Model), nil) {
			out[at[i]] = store.Info{Item: store.Item{Addr: a, Expires: t.Expires}, Length: int(t.Length), CRC: t.CRC,
				Tiers: store.Remote}
		}
	}
}
