package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
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
	noticeRounds = 4       // how often all hosts are told, until none changes anything
	noticeTries  = 6       // how often hosts are told if one fails, with pauses that double
	noticePause  = 50 * time.Millisecond
	doubtedTries = 4 // the same where one is left out: the lane's other keys wait meanwhile
)

// notice is what the other holders of a key are to be told.
type notice struct {
	what    change
	expiry  bool  // it was said when it is over
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

// notices are those that wait, and those on their way.
type notices struct {
	lanes [noticeLanes]chan block.Addr

	mu      sync.Mutex
	pending map[block.Addr]notice
	sending map[block.Addr]change // one for each lane at most
}

func newNotices() *notices {
	n := &notices{pending: map[block.Addr]notice{}, sending: map[block.Addr]change{}}
	for i := range n.lanes {
		n.lanes[i] = make(chan block.Addr, maxNotices)
	}
	return n
}

// add notes what is to be told; false: too much waits.
func (n *notices) add(a block.Addr, more notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, waits := n.pending[a]
	if more.what != kept {
		now.what, now.expiry = more.what, false // a new value has its own expiry
	}
	if more.expiry {
		now.expiry, now.expires = true, more.expires
	}
	return n.put(a, now, waits)
}

// put makes what wait. The lock is held.
func (n *notices) put(a block.Addr, what notice, waits bool) bool {
	if !waits && len(n.pending) >= maxNotices {
		return false
	}
	n.pending[a] = what
	if !waits {
		n.lanes[binary.LittleEndian.Uint32(a.Digest[:])%noticeLanes] <- a // there is room for all that waits
	}
	return true
}

// again is add of what could not be told; what has been done to the key since counts.
func (n *notices) again(a block.Addr, what notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, waits := n.pending[a]
	if !waits {
		return n.put(a, what, false)
	}
	if now.what != kept {
		what.what = now.what
	}
	if now.expiry || now.what == set {
		what.expiry, what.expires = now.expiry, now.expires
	}
	n.pending[a] = what
	return true
}

// take is what is to be told of a key, until done.
func (n *notices) take(a block.Addr) notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	what := n.pending[a]
	delete(n.pending, a)
	n.sending[a] = what.what
	return what
}

func (n *notices) done(a block.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sending, a)
}

// bars tells whether other hosts are still to be told of a key.
func (n *notices) bars(a block.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, waits := n.pending[a]
	_, sent := n.sending[a]
	return waits || sent
}

// waiting counts those that not all holders have been told of.
func (n *notices) waiting() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.pending) + len(n.sending))
}

// notify has the other holders of a key told, and returns at once.
func (v *View) notify(a block.Addr, what notice) {
	if !v.alone() && !v.notices.add(a, what) {
		v.counts.noticesLost.Add(1)
	}
}

// tellHolders sends the notices of one lane until ctx ends.
func (v *View) tellHolders(ctx context.Context, lane <-chan block.Addr) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-lane:
			what := v.notices.take(a)
			err := v.send(ctx, a, &what)
			what.tries++
			lost := err != nil && ctx.Err() == nil
			tries := noticeTries
			if errors.Is(err, errDoubted) {
				tries = doubtedTries
			}
			if lost && what.tries < tries && wait(ctx, noticePause<<what.tries) {
				lost = !v.notices.again(a, what)
			}
			v.notices.done(a)
			if !lost {
				continue
			}
			v.counts.noticesLost.Add(1)
			v.warn("notice", "another cache could not be told of a key that was set, deleted or timed here, and may "+
				"go on with what it has", "error", err)
		}
	}
}

// send tells the other hosts until none changes anything. Keepers are not asked: they do not know
// yet what came to a host a moment ago.
func (v *View) send(ctx context.Context, a block.Addr, what *notice) error {
	timed := map[string]bool{} // hosts that have been told once when it is over
	for round := range noticeRounds {
		changed, err := v.sendTo(ctx, a, what, v.everybody(), timed)
		if err != nil || round > 0 && changed == 0 {
			return err
		}
	}
	return nil
}

func (v *View) everybody() (hosts []string) {
	for _, m := range v.roster.Load().members {
		if m.ID != v.o.Self {
			hosts = append(hosts, m.ID)
		}
	}
	return hosts
}

// sendTo tells some hosts, and counts those that have changed something. Each is told once when the
// key is over: somebody else may say otherwise meanwhile.
func (v *View) sendTo(ctx context.Context, a block.Addr, what *notice, hosts []string,
	timed map[string]bool) (changed int64, err error) {
	here, err := v.Store.Stat(ctx, a)
	if err != nil && !errors.Is(err, store.ErrMiss) {
		return 0, err
	}
	expires := what.expires
	if here.Tiers != 0 && !what.expiry {
		expires = here.Item.Expires
	}
	var n atomic.Int64
	again := maps.Clone(timed)
	for _, id := range hosts {
		timed[id] = true
	}
	err = v.askEach(ctx, hosts, noticeWithin, func(ctx context.Context, m *Member, peer *transport.Peer) error {
		var there [1]wire.Info
		if err := peer.Stat(ctx, []block.Addr{a}, there[:]); err != nil || there[0].Tiers == 0 {
			return err
		}
		differs := what.what == set && (here.Tiers == 0 || here.CRC != there[0].CRC)
		switch {
		case what.what == deleted, differs:
			n.Add(1)
			v.counts.dropped.Add(1)
			if differs {
				v.counts.differed.Add(1)
			}
			var was [1]bool
			return peer.Delete(ctx, []block.Addr{a}, was[:])
		case expires != there[0].Expires && !again[m.ID] && (what.expiry || what.what == set):
			n.Add(1)
			_, err := peer.Order(ctx, wire.Expire, &wire.Order{Moment: expires, Addrs: []block.Addr{a}})
			return err
		}
		return nil
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
	there, err := v.Store.Delete(ctx, a)
	if err != nil || v.alone() {
		return there, err
	}
	v.notify(a, notice{what: deleted})
	return there || v.elsewhere(ctx, a), nil
}

// SetExpiry says when a block is over, in Unix ms; 0: never. False: neither is it here nor is
// another host known to hold it. The other holders are told.
func (v *View) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error) {
	there, err := v.Store.SetExpiry(ctx, a, unixMS)
	if err != nil || v.alone() {
		return there, err
	}
	v.notify(a, notice{expiry: true, expires: unixMS})
	return there || v.elsewhere(ctx, a), nil
}

// elsewhere tells whether the keeper knows another holder.
func (v *View) elsewhere(ctx context.Context, a block.Addr) bool {
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

// Order does what another host asks; it is transport.Handler's.
func (v *View) Order(ctx context.Context, op wire.Op, o *wire.Order) (*wire.Reply, error) {
	if o.Host != "" && (o.Host == v.o.Self || v.roster.Load().member(o.Host) == nil) {
		return nil, wire.Forbidden // it will try again, and be known by then
	}
	switch {
	case op == wire.Expire && len(o.Addrs) <= wire.MaxBatch:
		r := &wire.Reply{}
		for _, a := range o.Addrs {
			there, err := v.Store.SetExpiry(ctx, a, o.Moment)
			if err != nil {
				return nil, err
			}
			mark := byte(0)
			if there {
				mark = 1
			}
			r.Marks = append(r.Marks, mark)
		}
		return r, nil
	case op == wire.Purge && o.Host != "":
		n, err := v.purge(ctx, o)
		return &wire.Reply{Number: n}, err
	}
	return nil, wire.BadFrame
}
