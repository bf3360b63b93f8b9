package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A client's key names content, so the values of two hosts under one key are interchangeable. SET,
// DEL and EXPIRE act on this host, and then the client is answered. A notice about the key then
// goes to the other hosts. The hosts drop a value whose checksum differs and take over the expiry.
// The client does not wait for the notice.
//
// A host that has pulled a key asks the source again. The puller drops the pulled value if the
// source has another value by then or does not answer. A notice is sent to all hosts again until no
// host changes anything. A pulled key is not kept while this host has a notice about the key under
// way. If a key is set on two hosts at the same moment, both may drop it, and the key is a miss. A
// host that does not answer keeps its value.

// Bounds of notices.
const (
	maxNotices   = 1 << 16 // notices that wait; a further one is lost
	noticeLanes  = 8       // notices of one key go through the same lane, in order
	noticeBatch  = 256     // keys in one message to a host
	noticeRounds = 4       // rounds of one send; a round without changes is the last
	noticeTries  = 6       // sendings after failures, with pauses that double
	noticePause  = 50 * time.Millisecond
	// expiresAtOnce bounds the Expires of one round to one host that are under way. All lanes
	// together stay below the number of requests that a host serves for another host at a time.
	expiresAtOnce = 16
	doubtedTries  = 4 // sendings if a host is left out; fewer, because the other keys of the lane wait meanwhile
)

// notice is a change of a key that the other hosts must learn.
type notice struct {
	what    change
	expiry  bool  // the notice sets the key's expiry
	expires int64 // Unix ms; 0: never
	tries   int
}

// change is the last change of a key's value.
type change int

const (
	kept change = iota
	set
	deleted
)

// then returns n followed by a later notice of the same key. A new value replaces the earlier
// expiry.
func (n notice) then(later notice) notice {
	if later.what != kept {
		n.what, n.expiry = later.what, false
	}
	if later.expiry {
		n.expiry, n.expires = true, later.expires
	}
	n.tries = max(n.tries, later.tries)
	return n
}

// notices are the waiting notices, and the keys that must not be kept after a pull.
type notices struct {
	lanes [noticeLanes]lane

	mu      sync.Mutex
	pending map[block.Addr]notice
	sending int                // notices that are being sent
	barred  map[block.Addr]int // keys that must not be kept after a pull, with the number of reasons
}

// lane has the keys of waiting notices in the order of their sending.
type lane struct {
	queue []block.Addr  // keys of pending; guarded by notices.mu
	wake  chan struct{} // has a value once queue has grown
}

func newNotices() *notices {
	n := &notices{pending: map[block.Addr]notice{}, barred: map[block.Addr]int{}}
	for i := range n.lanes {
		n.lanes[i].wake = make(chan struct{}, 1)
	}
	return n
}

// add adds a notice; false: too many wait.
func (n *notices) add(a block.Addr, later notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(a, n.pending[a].then(later))
}

// again adds a notice that could not be sent. A later change of the key takes precedence.
func (n *notices) again(a block.Addr, what notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(a, what.then(n.pending[a]))
}

// put makes a notice wait. The caller holds the lock.
func (n *notices) put(a block.Addr, what notice) bool {
	_, waits := n.pending[a]
	if !waits && len(n.pending) >= maxNotices {
		return false
	}
	n.pending[a] = what
	if !waits {
		l := &n.lanes[binary.LittleEndian.Uint32(a.Digest[:])%noticeLanes]
		l.queue = append(l.queue, a)
		await.Wake(l.wake)
	}
	return true
}

// take moves the first waiting notices of a lane into a batch that is sent.
func (n *notices) take(l *lane) map[block.Addr]notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	batch := map[block.Addr]notice{}
	for _, a := range l.queue[:min(len(l.queue), noticeBatch)] {
		batch[a] = n.pending[a]
		delete(n.pending, a)
		n.barred[a]++
	}
	n.sending += len(batch)
	if l.queue = l.queue[len(batch):]; len(l.queue) == 0 {
		l.queue = nil // the memory of many notices is not kept
	}
	return batch
}

// done says that a batch is no longer being sent.
func (n *notices) done(batch map[block.Addr]notice) {
	for a := range batch {
		n.unbar(a)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sending -= len(batch)
}

// bar makes pulls of a key be dropped until unbar.
func (n *notices) bar(a block.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.barred[a]++
}

func (n *notices) unbar(a block.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.barred[a]--; n.barred[a] == 0 {
		delete(n.barred, a)
	}
}

// bars tells whether a pulled key must be dropped.
func (n *notices) bars(a block.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, waits := n.pending[a]
	return waits || n.barred[a] > 0
}

// waiting is the number of notices that wait or are being sent.
func (n *notices) waiting() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.pending) + n.sending)
}

// notify adds a notice about a key and returns at once. The notice waits until etcd has listed the
// hosts.
func (v *View) notify(a block.Addr, what notice) {
	if len(v.roster.Load().members) < 2 && v.Known() {
		return
	}
	if !v.notices.add(a, what) {
		v.counts.noticesLost.Add(1)
	}
}

// tellHosts sends the notices of one lane until ctx ends.
func (v *View) tellHosts(ctx context.Context, l *lane) {
	for _, first := range []<-chan struct{}{v.named, v.Store.Shown()} {
		if await.Closed(ctx, first) != nil {
			return
		}
	}
	for ctx.Err() == nil {
		batch := v.notices.take(l)
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		if err := v.send(ctx, batch); err != nil && ctx.Err() == nil {
			v.retell(ctx, batch, err)
		}
		v.notices.done(batch)
	}
}

// retell makes a batch wait again after a pause. A notice that failed too often is lost.
func (v *View) retell(ctx context.Context, batch map[block.Addr]notice, err error) {
	most, tried := noticeTries, 0
	if errors.Is(err, errDoubted) {
		most = doubtedTries
	}
	for _, what := range batch {
		tried = max(tried, what.tries+1)
	}
	if !await.For(ctx, noticePause<<min(tried, most)) {
		return
	}
	for a, what := range batch {
		if what.tries++; what.tries < most && v.notices.again(a, what) {
			continue
		}
		v.counts.noticesLost.Add(1)
		v.seldom.Warn(v.o.Logger, "notice", "another cache could not be told of a key that was set, deleted or timed here, and may "+
			"go on with what it has", "error", err)
	}
}

// send sends a batch to the other hosts until no host changes anything. Keepers are not asked,
// because they do not know yet which blocks a host got a moment ago.
func (v *View) send(ctx context.Context, batch map[block.Addr]notice) error {
	for round := range noticeRounds {
		changed, err := v.sendOnce(ctx, batch, round == 0)
		if err != nil || changed == 0 {
			return err
		}
	}
	return nil
}

// sendOnce sends a batch to the other hosts and counts the values that they drop. The expiry is
// sent only in the first round, because another host may set a new expiry meanwhile.
func (v *View) sendOnce(ctx context.Context, batch map[block.Addr]notice, first bool) (changed int64, err error) {
	addrs := slices.Collect(maps.Keys(batch))
	here := make([]store.Info, len(addrs))
	if err := v.Store.StatAll(ctx, addrs, here); err != nil {
		return 0, err
	}
	var n atomic.Int64
	err = v.askAll(ctx, noticeWithin, func(ctx context.Context, peer *transport.Peer) error {
		there := make([]wire.Info, len(addrs))
		if err := peer.Stat(ctx, addrs, there); err != nil {
			return err
		}
		var drop []block.Addr
		expire := map[int64][]block.Addr{}
		for i, a := range addrs {
			what := batch[a]
			differs := what.what == set && (here[i].Tiers == 0 || here[i].CRC != there[i].CRC)
			expires := what.expires
			if !what.expiry {
				expires = here[i].Item.Expires
			}
			switch {
			case there[i].Tiers == 0:
			case what.what == deleted, differs:
				drop = append(drop, a)
				if here[i].Tiers != 0 && differs {
					v.counts.differed.Add(1)
				}
			case first && expires != there[i].Expires && (what.expiry || what.what == set):
				expire[expires] = append(expire[expires], a)
			}
		}
		if err := expireAll(ctx, peer, expire); err != nil {
			return err
		}
		if len(drop) == 0 {
			return nil
		}
		n.Add(int64(len(drop)))
		v.counts.dropped.Add(uint64(len(drop)))
		return peer.Delete(ctx, drop, make([]bool, len(drop)))
	})
	return n.Load(), err
}

// expireAll sets the expiries of a host's keys, given by moment in Unix ms. An Expire sets one
// moment for all its keys, and most keys have a moment of their own.
func expireAll(ctx context.Context, peer *transport.Peer, keys map[int64][]block.Addr) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(expiresAtOnce)
	for moment, addrs := range keys {
		group.Go(func() error { return peer.Expire(ctx, addrs, moment) })
	}
	return group.Wait()
}

// Written is the store's Options.Written.
func (v *View) Written(it *store.Item) {
	if block.OfKeys(it.Namespace) {
		v.notify(it.Addr, notice{what: set})
	}
}

// Deleting is the store's Options.Deleting. Deletions by other hosts call Deleting as well.
func (v *View) Deleting(a block.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pulls[a]; p != nil {
		p.barred = true
	}
}

// Delete removes a block from this host. Delete tells whether this host had the block or another
// host is known to have it. The other hosts get a notice.
func (v *View) Delete(ctx context.Context, a block.Addr) (bool, error) {
	v.notices.bar(a)
	defer v.notices.unbar(a)
	there, err := v.Store.Delete(ctx, a)
	if err != nil {
		return there, err
	}
	there = there || v.elsewhere(ctx, a)
	v.notify(a, notice{what: deleted})
	return there, nil
}

// SetExpiry sets the moment when a block expires, in Unix ms; 0: never. SetExpiry returns false if
// this host does not have the block and no other holder is known. The other hosts get a notice.
func (v *View) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error) {
	v.notices.bar(a)
	defer v.notices.unbar(a)
	there, err := v.Store.SetExpiry(ctx, a, unixMS)
	if err != nil {
		return there, err
	}
	there = there || v.elsewhere(ctx, a)
	v.notify(a, notice{expiry: true, expires: unixMS})
	return there, nil
}

// elsewhere tells whether the block's keeper knows another holder.
func (v *View) elsewhere(ctx context.Context, a block.Addr) bool {
	if v.alone() {
		return false
	}
	located, _ := v.locate(ctx, []block.Addr{a})
	return len(located[0]) > 0
}

// settle drops a pulled key unless its source still has the same value. settle takes over an expiry
// that the source got meanwhile. The key is dropped even if no caller waits for the pull any more.
func (v *View) settle(ctx context.Context, from *source, a block.Addr, f *transport.Found) {
	ctx = context.WithoutCancel(ctx)
	var now [1]wire.Info
	err := v.watch(ctx, v.o.HeadTimeout, from.health, func(ctx context.Context, _ *health) error {
		return from.peer.Stat(ctx, []block.Addr{a}, now[:])
	})
	here, missing := v.Store.Stat(ctx, a)
	switch {
	case missing != nil || here.CRC != f.CRC: // the key was set or deleted here
		return
	case err != nil, now[0].Tiers == 0, now[0].CRC != f.CRC:
		_, err = v.Store.Delete(ctx, a)
	case here.Item.Expires != f.Item.Expires: // the expiry was set here, and the source gets a notice
	case now[0].Expires != f.Item.Expires:
		_, err = v.Store.SetExpiry(ctx, a, now[0].Expires)
	}
	if err != nil && !errors.Is(err, store.ErrMiss) {
		v.seldom.Warn(v.o.Logger, "settle", "a key that was read from another cache may be old, and could not be dropped", "error", err)
	}
}
