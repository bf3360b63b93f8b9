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

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A key of a client names content: what two hosts hold under one key is interchangeable. SET, DEL
// and EXPIRE act on this host, and the client is answered. A notice then goes to the other hosts:
// they drop a value whose checksum differs, and take over the expiry. Nobody waits for it.
//
// A host that pulls a key asks its source again once it has it, and drops what it pulled if the
// source has another value by then or does not answer. A notice asks all hosts again until none
// changes anything. A pull of a key is not kept while a notice about the key is on its way. Two
// hosts on which one key is set at the same moment may both drop it: a miss. A host that does not
// answer keeps what it has.

// Bounds of notices.
const (
	maxNotices   = 1 << 16 // that wait; a further one is lost
	noticeLanes  = 8       // each key's notices go through one of them, in order
	noticeBatch  = 256     // keys that a host is told of in one message
	noticeRounds = 4       // how often all hosts are told, until none changes anything
	noticeTries  = 6       // how often hosts are told if one fails, with pauses that double
	noticePause  = 50 * time.Millisecond
	doubtedTries = 4 // the same where one is left out: the lane's other keys wait meanwhile
)

// notice is what the other hosts are to be told of a key.
type notice struct {
	what    change
	expiry  bool  // it was said when the key is over
	expires int64 // Unix ms; 0: never
	tries   int
}

// change is what was done to a key's value last.
type change int

const (
	kept change = iota
	set
	deleted
)

// then is n followed by what was done later. A new value has its own expiry.
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

// notices are those that wait, and the keys that must not be pulled.
type notices struct {
	lanes [noticeLanes]chan block.Addr

	mu      sync.Mutex
	pending map[block.Addr]notice
	sending int                // notices on their way
	barred  map[block.Addr]int // keys that a notice on its way or a caller bars, by how many
}

func newNotices() *notices {
	n := &notices{pending: map[block.Addr]notice{}, barred: map[block.Addr]int{}}
	for i := range n.lanes {
		n.lanes[i] = make(chan block.Addr, maxNotices)
	}
	return n
}

// add notes what is to be told; false: too much waits.
func (n *notices) add(a block.Addr, later notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(a, n.pending[a].then(later))
}

// again is add of what could not be told; what has been done to the key since counts.
func (n *notices) again(a block.Addr, what notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.put(a, what.then(n.pending[a]))
}

// put has a notice wait. The lock is held.
func (n *notices) put(a block.Addr, what notice) bool {
	_, waits := n.pending[a]
	if !waits && len(n.pending) >= maxNotices {
		return false
	}
	n.pending[a] = what
	if !waits {
		n.lanes[binary.LittleEndian.Uint32(a.Digest[:])%noticeLanes] <- a // there is room for all that waits
	}
	return true
}

// take moves what waits of a key to what is on its way.
func (n *notices) take(a block.Addr, batch map[block.Addr]notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, twice := batch[a]; !twice {
		n.sending++
		n.barred[a]++
	}
	batch[a] = batch[a].then(n.pending[a])
	delete(n.pending, a)
}

// done says that the notices of a batch are not on their way any more.
func (n *notices) done(batch map[block.Addr]notice) {
	for a := range batch {
		n.unbar(a)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sending -= len(batch)
}

// bar has pulls of a key not kept until unbar.
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

// bars tells whether a pull of a key must not be kept.
func (n *notices) bars(a block.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, waits := n.pending[a]
	return waits || n.barred[a] > 0
}

// waiting counts those that wait or are on their way.
func (n *notices) waiting() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.pending) + n.sending)
}

// notify has the other hosts told of a key, and returns at once. Until etcd has named them, it
// waits.
func (v *View) notify(a block.Addr, what notice) {
	if len(v.roster.Load().members) < 2 && v.Known() {
		return
	}
	if !v.notices.add(a, what) {
		v.counts.noticesLost.Add(1)
	}
}

// tellHosts sends the notices of one lane until ctx ends.
func (v *View) tellHosts(ctx context.Context, lane <-chan block.Addr) {
	for _, first := range []<-chan struct{}{v.named, v.Store.Shown()} {
		select {
		case <-ctx.Done():
			return
		case <-first:
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-lane:
			batch := map[block.Addr]notice{}
			v.notices.take(a, batch)
			for more := true; more && len(batch) < noticeBatch; {
				select {
				case a := <-lane:
					v.notices.take(a, batch)
				default:
					more = false
				}
			}
			if err := v.send(ctx, batch); err != nil && ctx.Err() == nil {
				v.retell(ctx, batch, err)
			}
			v.notices.done(batch)
		}
	}
}

// retell has a batch wait again after a pause. What was tried often enough is lost.
func (v *View) retell(ctx context.Context, batch map[block.Addr]notice, err error) {
	most, tried := noticeTries, 0
	if errors.Is(err, errDoubted) {
		most = doubtedTries
	}
	for _, what := range batch {
		tried = max(tried, what.tries+1)
	}
	if !wait(ctx, noticePause<<min(tried, most)) {
		return
	}
	for a, what := range batch {
		if what.tries++; what.tries < most && v.notices.again(a, what) {
			continue
		}
		v.counts.noticesLost.Add(1)
		v.warn("notice", "another cache could not be told of a key that was set, deleted or timed here, and may "+
			"go on with what it has", "error", err)
	}
}

// send tells the other hosts of some keys until none changes anything. Keepers are not asked: they
// do not know yet what came to a host a moment ago.
func (v *View) send(ctx context.Context, batch map[block.Addr]notice) error {
	for round := range noticeRounds {
		changed, err := v.sendOnce(ctx, batch, round == 0)
		if err != nil || changed == 0 {
			return err
		}
	}
	return nil
}

// sendOnce tells the other hosts of some keys, and counts the values that they dropped. Only the
// first time are they told when a key is over: somebody else may say otherwise meanwhile.
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
				if err := peer.Expire(ctx, []block.Addr{a}, expires); err != nil {
					return err
				}
			}
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

// Written is to be called with what the store's Options.Written is told.
func (v *View) Written(it *store.Item) {
	if block.OfKeys(it.Namespace) {
		v.notify(it.Addr, notice{what: set})
	}
}

// Deleting is to be called with what the store's Options.Deleting is told, which other hosts'
// deletions are, too.
func (v *View) Deleting(a block.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pulls[a]; p != nil {
		p.barred = true
	}
}

// Delete removes a block from this host and tells whether it had it, or another host is known to.
// The other holders are told.
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

// SetExpiry says when a block is over, in Unix ms; 0: never. False: neither is it here nor is
// another host known to hold it. The other holders are told.
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

// elsewhere tells whether the keeper knows another holder.
func (v *View) elsewhere(ctx context.Context, a block.Addr) bool {
	if v.alone() {
		return false
	}
	located, _ := v.locate(ctx, []block.Addr{a})
	return len(located[0]) > 0
}

// settle drops a key that was pulled from a host unless that has the same value now, whoever waits
// for the pull.
func (v *View) settle(ctx context.Context, from *source, a block.Addr, f *transport.Found) {
	ctx = context.WithoutCancel(ctx)
	var now [1]wire.Info
	err := v.watch(ctx, headWithin, from.health, func(ctx context.Context, _ *health) error {
		return from.peer.Stat(ctx, []block.Addr{a}, now[:])
	})
	here, missing := v.Store.Stat(ctx, a)
	switch {
	case missing != nil || here.CRC != f.CRC: // it was set or deleted here
		return
	case err != nil, now[0].Tiers == 0, now[0].CRC != f.CRC:
		_, err = v.Store.Delete(ctx, a)
	case now[0].Expires != here.Item.Expires:
		_, err = v.Store.SetExpiry(ctx, a, now[0].Expires)
	}
	if err != nil && !errors.Is(err, store.ErrMiss) {
		v.warn("settle", "a key that was read from another cache may be old, and could not be dropped", "error", err)
	}
}
