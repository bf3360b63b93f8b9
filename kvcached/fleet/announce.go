package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Timing of announcements.
const (
	announceBatch = 4096            // changes in one message
	assureEvery   = 2 * time.Second // interval at which an idle link checks that its keeper still has all changes
	retryFirst    = 50 * time.Millisecond
	retryLast     = 2 * time.Second
)

// Changed is the store's Options.Changed. Changed never waits.
func (v *View) Changed(c store.Change) {
	select {
	case v.changes <- c.Addr:
	default:
		v.overrun.Store(true)
	}
}

// link sends this host's changes to one keeper.
type link struct {
	v      *View
	member Member
	wake   chan struct{}
	stop   context.CancelFunc

	mu      sync.Mutex
	pending map[block.Addr]struct{} // at most maxQueue; if more change, the link sends a snapshot
	anew    bool

	version uint64 // number of the last change that was sent; only run uses it
}

// set stores a new roster and returns the old one.
func (v *View) set(r *roster) (was *roster) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was = v.roster.Load()
	if slices.Equal(r.members, was.members) {
		return was
	}
	v.roster.Store(r)
	v.doubts.retain(r)
	v.keeper.retain(r)
	v.tellAll()
	return was
}

// Run sends changes and notices to the fleet and makes pulls and replication possible, until ctx
// ends.
func (v *View) Run(ctx context.Context) error {
	v.mu.Lock()
	v.running = ctx
	v.mu.Unlock()
	var wg sync.WaitGroup
	for i := range v.notices.lanes {
		wg.Go(func() { v.tellHosts(ctx, &v.notices.lanes[i]) })
	}
	if v.o.Replicas > 0 {
		wg.Go(func() { v.replicate(ctx) })
	}
	v.distribute(ctx, &wg)
	v.mu.Lock()
	v.running = nil
	v.mu.Unlock()
	wg.Wait()
	v.wg.Wait()
	return nil
}

// distribute gives each change to the link of the address's keeper.
func (v *View) distribute(ctx context.Context, wg *sync.WaitGroup) {
	links := map[string]*link{}
	var seen *roster
	var again <-chan time.Time // time at which keepOwn is tried again; nil: it has not failed
	for {
		var a block.Addr
		due := false
		select {
		case <-ctx.Done():
			return
		case a = <-v.changes:
		case <-again:
			due = true
		}
		r := v.roster.Load()
		if r != seen {
			seen = r
			v.relink(ctx, wg, r, links)
		}
		if v.overrun.Swap(false) {
			v.counts.overruns.Add(1)
			for _, l := range links {
				l.tellAnew()
			}
			if again == nil {
				v.keeper.announce(&wire.Announcement{Host: v.o.Self, Epoch: v.o.Epoch}, true)
			}
			due = true
		}
		if due {
			again = v.retryOwn(ctx, again != nil)
		}
		if a != (block.Addr{}) {
			v.tell(ctx, r, links, a)
		}
	}
}

// relink starts links to new hosts and ends links to hosts that have left or restarted.
func (v *View) relink(ctx context.Context, wg *sync.WaitGroup, r *roster, links map[string]*link) {
	for id, l := range links {
		if m := r.member(id); m == nil || *m != l.member {
			l.stop()
			delete(links, id)
		}
	}
	for _, m := range r.members {
		if m.ID == v.o.Self || links[m.ID] != nil {
			continue
		}
		l := &link{v: v, member: m, wake: make(chan struct{}, 1), pending: map[block.Addr]struct{}{}, anew: true}
		var life context.Context
		life, l.stop = context.WithCancel(ctx)
		links[m.ID] = l
		wg.Go(func() { l.run(life) })
	}
}

// tell gives one change to the keeper of its address.
func (v *View) tell(ctx context.Context, r *roster, links map[string]*link, a block.Addr) {
	m := r.keeper(&a)
	if m.ID == v.o.Self {
		v.keepSome([]wire.Change{v.change(ctx, a)})
	} else if l := links[m.ID]; l != nil {
		l.add(a)
	}
}

// change is the present state of an address on this host, as a wire.Change.
func (v *View) change(ctx context.Context, a block.Addr) wire.Change {
	i, err := v.Store.Stat(ctx, a)
	if err != nil {
		return wire.Change{Addr: a}
	}
	return wire.Change{Addr: a, Tiers: uint32(i.Tiers), Length: uint64(i.Length)}
}

// keepSome gives changes of this host to its own keeper.
func (v *View) keepSome(changes []wire.Change) { v.keeper.keep(v.o.Self, v.o.Epoch, changes) }

// keepOwn gives this host's blocks to its own keeper and then ends the keeper's snapshot.
func (v *View) keepOwn(ctx context.Context) error {
	err := v.each(ctx, v.o.Self, func(some []wire.Change) error {
		v.keepSome(some)
		return nil
	})
	if err == nil {
		v.keepSome(nil)
	}
	return err
}

// retryOwn calls keepOwn. After an error the keeper's snapshot goes on, so that the keeper forgets
// nothing, and retryOwn returns when to try again. A success after an error makes all links and the
// keeper get a new snapshot, because changes may have been lost meanwhile.
func (v *View) retryOwn(ctx context.Context, failed bool) <-chan time.Time {
	err := v.keepOwn(ctx)
	if err == nil {
		if failed {
			v.tellAll()
		}
		return nil
	}
	if !failed && ctx.Err() == nil {
		v.o.Logger.Warn("the blocks of this host cannot be listed, so other hosts may not find them; trying on",
			"error", err)
	}
	return time.After(retryLast)
}

// each calls visit with batches of this host's blocks that have the given host as their keeper.
func (v *View) each(ctx context.Context, keeper string, visit func([]wire.Change) error) error {
	var some []wire.Change
	for cursor := uint64(0); ; {
		next, err := v.Store.Scan(ctx, cursor, func(i store.Info) bool {
			if v.roster.Load().keeper(&i.Item.Addr).ID == keeper {
				some = append(some, wire.Change{Addr: i.Item.Addr, Tiers: uint32(i.Tiers), Length: uint64(i.Length)})
			}
			return true
		})
		if err != nil {
			return err
		}
		if len(some) >= announceBatch/2 || next == 0 && len(some) > 0 {
			for len(some) > 0 {
				n := min(len(some), announceBatch)
				if err := visit(some[:n]); err != nil {
					return err
				}
				some = some[n:]
			}
			some = nil
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func (l *link) add(a block.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[a] = struct{}{}; len(l.pending) > maxQueue {
		l.anew = true
	}
	if l.anew {
		clear(l.pending)
	}
	await.Wake(l.wake)
}

func (l *link) tellAnew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.anew = true
	clear(l.pending)
	await.Wake(l.wake)
}

// run sends the link's changes until ctx ends.
func (l *link) run(ctx context.Context) {
	wait, told := retryFirst, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		if err := l.flush(ctx); err != nil {
			select { // a failed flush has woken the link itself: pause first
			case <-l.wake:
			default:
			}
			timer.Reset(wait)
			if wait = min(2*wait, retryLast); wait == retryLast && !told && ctx.Err() == nil {
				told = true
				l.v.o.Logger.Warn("another cache cannot be told what is here, so its host does not find it; trying on",
					"cache", l.member.ID, "address", l.member.Address, "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				timer.Reset(0)
			}
			continue
		}
		if told {
			l.v.o.Logger.Info("another cache is told again what is here", "cache", l.member.ID)
		}
		wait, told = retryFirst, false
		timer.Reset(assureEvery)
	}
}

// flush sends all pending changes. Without pending changes flush sends an empty announcement. After
// an error the link sends a snapshot next.
func (l *link) flush(ctx context.Context) error {
	err := l.tell(ctx)
	if err != nil {
		l.tellAnew()
	}
	return err
}

func (l *link) tell(ctx context.Context) error {
	l.mu.Lock()
	anew := l.anew
	addrs := l.pending
	l.anew, l.pending = false, map[block.Addr]struct{}{}
	l.mu.Unlock()
	if anew {
		return l.all(ctx)
	}
	changes := make([]wire.Change, 0, min(len(addrs), announceBatch))
	for a := range maps.Keys(addrs) {
		if changes = append(changes, l.v.change(ctx, a)); len(changes) == announceBatch {
			if err := l.send(ctx, changes, false); err != nil {
				return err
			}
			changes = changes[:0]
		}
	}
	return l.send(ctx, changes, false)
}

// all sends the link's host a snapshot of the blocks that have that host as their keeper.
func (l *link) all(ctx context.Context) error {
	l.v.counts.resyncs.Add(1)
	if err := l.send(ctx, nil, true); err != nil {
		return err
	}
	err := l.v.each(ctx, l.member.ID, func(some []wire.Change) error { return l.send(ctx, some, false) })
	if err != nil {
		return err
	}
	return l.send(ctx, nil, false)
}

func (l *link) send(ctx context.Context, changes []wire.Change, snapshot bool) error {
	a := &wire.Announcement{Host: l.v.o.Self, Epoch: l.v.o.Epoch, Version: l.version + 1, Changes: changes}
	if snapshot {
		a.Version = l.version
	}
	var receipt wire.Receipt
	err := l.v.within(ctx, l.v.o.PullTimeout, &l.member, func(ctx context.Context, peer *transport.Peer) (err error) {
		receipt, err = peer.Announce(ctx, a, snapshot)
		return err
	})
	if err != nil {
		return err
	}
	l.version += uint64(len(changes))
	l.v.counts.announced.Add(uint64(len(changes)))
	if receipt != (wire.Receipt{Epoch: a.Epoch, Version: l.version}) {
		return errForgot
	}
	return nil
}
