// Package fleet makes the cache daemons of all hosts one: a block that is not here is found and
// pulled from the host that has it.
//
// For each address one host, by rendezvous among those in etcd, keeps who has the block
// (keeper.go). Every host tells the keepers what comes to it and what leaves it (announce.go): that
// takes a millisecond or so, in which another host may still see a miss. A write stays on the host
// that it came to. What was pulled is a copy like any other.
//
// A key names content: what two hosts hold under one key is interchangeable. SET, DEL and EXPIRE
// act on this host and tell the other holders without waiting (notice.go). While hosts reach each
// other, an old value is gone a moment later; a host that was away may bring it back. Listing keys
// is of one host. A purge is of all hosts (purge.go).
package fleet

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Bounds that no option sets.
const (
	maxQueue   = 1 << 16 // changes that wait to be told, and of each keeper
	maxMembers = 1024
)

// errForgot says that a keeper does not know what it was told before.
var errForgot = errors.New("fleet: the keeper of locations has started anew")

// ErrUnknownHost says that no such host is in the fleet.
var ErrUnknownHost = errors.New("fleet: no such host")

// Options of New.
type Options struct {
	Store *store.Store    // of this host. Required
	Pool  *transport.Pool // connections to the others. Required
	// Ledger is this host's purges. Required.
	Ledger *purge.Ledger
	// Register is the fleet's list of purges. Required.
	Register Register
	Self     string // this host's cache id. Required
	Epoch    uint64 // of this start of the daemon; larger than those before. Required

	// LocateTimeout bounds the question who has a block; then it is a miss. 0: 100 ms.
	LocateTimeout time.Duration
	// AnswerTimeout is how long a host from which something is awaited may say nothing at all
	// before it is left out until it answers. 0: 200 ms.
	AnswerTimeout time.Duration
	// PeerBytes bounds the blocks on their way here from one host, where their length is known;
	// others wait. 0: no bound. More than the host lets one other have costs refusals.
	PeerBytes int64
	// PullTimeout bounds the transfer of a block. 0: 10 s.
	PullTimeout time.Duration
	// MaxPulls is how many blocks may be on their way here at a time; one more is a miss. 0: 64.
	MaxPulls int
	// MaxLocations is how many addresses this host keeps for the fleet, at about 100 bytes each;
	// further ones are not found by other hosts. 0: 2^20.
	MaxLocations int
	// Replicas is to how many other hosts a block goes that has been used HotUses times here. 0:
	// none.
	Replicas int
	// HotUses is what makes a block hot. 0: 8.
	HotUses int
	Logger  *slog.Logger // nil: slog.Default()
}

// View is the store of this host as part of the fleet. Get, Stat, StatAll, Describe and PurgeAll
// see all hosts; Delete and SetExpiry tell them.
type View struct {
	Store *store.Store // of this host

	o      Options
	roster atomic.Pointer[roster]
	doubts doubts
	quiet  quiet
	links  atomic.Pointer[map[string]*link] // to the other hosts, by id
	keeper *keeper

	changes    chan block.Addr // that came or went; what is so now is looked up when it is told
	overrun    atomic.Bool     // changes were lost: everything is to be told anew
	replicates chan block.Addr

	notices *notices
	name    sync.Once
	named   chan struct{} // closed once etcd has named all members, this host among them

	mu      sync.Mutex
	pulls   map[block.Addr]*pull
	running context.Context // nil before Run and after
	wg      sync.WaitGroup  // pulls and probes

	names *names

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
}

// Stats is what a View has done, and what it keeps.
type Stats struct {
	Pulled            uint64 // blocks brought here from other hosts
	PulledBytes       uint64
	PullMisses        uint64 // pulls that found the block nowhere
	PullsFailed       uint64 // pulls that all hosts failed that were asked
	PullsBusy         uint64 // pulls given up because the hosts that have the block had too much to do
	PullRetries       uint64 // times that a host with too much to do was asked again
	PullErrors        uint64 // pulls from a host that failed; another one is asked then
	PullsRefused      uint64 // pulls that were too many
	Located           uint64 // questions who has blocks
	LocateErrors      uint64 // those without an answer
	Namespaces        int64  // texts of namespaces that are known
	NamespacesDropped uint64 // those forgotten because of more
	UnknownNamespaces uint64 // pulls given up because the namespace's text is not known here
	Announced         uint64 // changes told to keepers
	Resyncs           uint64 // times that a keeper was told everything anew
	Overruns          uint64 // times that changes came faster than they could be told
	Replicated        uint64 // hot blocks handed to another host
	ReplicasDropped   uint64 // hot blocks that were not, because of an error or too many
	Dropped           uint64 // values that other hosts dropped because their key was set or deleted here
	Differed          uint64 // of those, the ones that were another value than the one set here
	Notices           int64  // keys that holders are still to be told of
	NoticesLost       uint64 // those that some holder was not told of
	Named             int64  // 1: etcd has named all caches, this one among them
	Hidden            int64  // 1: reads are misses, for the purges are not read yet
	Purges            int64  // that are remembered
	PurgeRevision     int64  // of the last one that was carried out
	LeftOut           int64  // hosts that are not asked now because they do not answer
	TimesLeftOut      uint64 // times that one began not to be
	Probes            uint64 // times that one was asked for a sign of life
	Members           int64  // hosts in the fleet, this one included
	Locations         int64  // addresses that this host keeps
	LocationsRefused  uint64 // addresses that it had no room for
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
		LeftOut: v.doubts.leftOut(), TimesLeftOut: c.leftOut.Load(), Probes: c.probes.Load(),
		Members: int64(len(v.roster.Load().members)), Locations: kept, LocationsRefused: refused,
	}
	if v.Known() {
		s.Named = 1
	}
	if v.hidden() {
		s.Hidden = 1
	}
	s.Purges, s.PurgeRevision = int64(len(v.o.Ledger.List().Purges)), int64(v.Stamp().Revision)
	return s
}

// New makes a view of a fleet that has no other host yet.
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
	if o.PullTimeout <= 0 {
		o.PullTimeout = 10 * time.Second
	}
	if o.MaxPulls <= 0 {
		o.MaxPulls = 64
	}
	if o.MaxLocations <= 0 {
		o.MaxLocations = 1 << 20
	}
	if o.HotUses <= 0 {
		o.HotUses = 8
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	v := &View{
		Store: o.Store, o: o, keeper: newKeeper(o.MaxLocations), changes: make(chan block.Addr, maxQueue),
		replicates: make(chan block.Addr, 1024), pulls: map[block.Addr]*pull{}, names: newNames(maxNamespaces),
		doubts: doubts{share: o.PeerBytes, hosts: map[string]*health{}}, notices: newNotices(),
		named: make(chan struct{}),
	}
	v.roster.Store(newRoster(o.Self, nil))
	v.links.Store(&map[string]*link{})
	return v, nil
}

// Named says that SetMembers has been told all that etcd names, this host among them.
func (v *View) Named() { v.name.Do(func() { close(v.named) }) }

// Known tells whether etcd has named all members, this host among them.
func (v *View) Known() bool {
	select {
	case <-v.named:
		return true
	default:
		return false
	}
}

// Show ends store.Options.Hidden of this host's store, and tells keepers what it has.
func (v *View) Show() {
	v.Store.Show()
	v.tellAll()
}

// tellAll has keepers told everything anew.
func (v *View) tellAll() {
	v.overrun.Store(true)
	select {
	case v.changes <- block.Addr{}:
	default:
	}
}

// alone tells that there is nobody to ask, or nothing to be said yet.
func (v *View) alone() bool { return len(v.roster.Load().members) < 2 || v.hidden() }

// hidden tells whether this host's reads are misses.
func (v *View) hidden() bool {
	select {
	case <-v.Store.Shown():
		return false
	default:
		return true
	}
}

// Get holds a block, which is pulled from another host if it is not here. store.ErrMiss: nobody has
// it.
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

// Stat tells what is known of a block anywhere. Its Tiers are store.Remote where it is on other
// hosts only; one of them is asked when it is over then.
func (v *View) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	i, err := v.Store.Stat(ctx, a)
	if !errors.Is(err, store.ErrMiss) || v.alone() {
		return i, err
	}
	located, _ := v.locate(ctx, []block.Addr{a}) // a keeper that does not answer knows of nobody
	for _, l := range located[0] {
		m := v.roster.Load().member(l.host)
		if m == nil {
			continue
		}
		var there [1]wire.Info
		err := v.within(ctx, v.o.LocateTimeout, m, func(ctx context.Context, peer *transport.Peer) error {
			return peer.Stat(ctx, []block.Addr{a}, there[:])
		})
		if err == nil && there[0].Tiers != 0 && !v.Bars(there[0].Stamp, v.nameOf(a.Model), nil) {
			return store.Info{Item: store.Item{Addr: a, Expires: there[0].Expires}, Length: int(there[0].Length),
				CRC: there[0].CRC, Tiers: store.Remote}, nil
		}
	}
	return store.Info{}, store.ErrMiss
}

// Describe tells all that is known of a block, which is pulled from another host if it is not here.
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

// StatAll does Stat for many.
func (v *View) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	err := v.Store.StatAll(ctx, addrs, out)
	if err == nil && !v.alone() {
		var missing []int
		for i := range out {
			if out[i].Tiers == 0 {
				missing = append(missing, i)
			}
		}
		v.statRemote(ctx, addrs, out, missing)
	}
	return err
}

// statRemote fills in what keepers know of addrs[i] for each i in missing.
func (v *View) statRemote(ctx context.Context, addrs []block.Addr, out []store.Info, missing []int) {
	asked := make([]block.Addr, len(missing))
	for i, at := range missing {
		asked[i] = addrs[at]
	}
	located, _ := v.locate(ctx, asked) // a keeper that does not answer knows of nobody
	for i, l := range located {
		if len(l) > 0 {
			out[missing[i]] = store.Info{Item: store.Item{Addr: asked[i]}, Length: int(l[0].length),
				Tiers: store.Remote}
		}
	}
}
