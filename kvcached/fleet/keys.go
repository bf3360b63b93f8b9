package fleet

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A client's own key may be set again, so no host may go on to answer with an older value. These
// rules see to that, whatever else is under way:
//
//   - Who sets a key tells the keeper and who deletes one does so here first; then they have all
//     others whom the keeper knows drop theirs, and ask again until it knows of nobody. Only then
//     is the client answered.
//   - Who pulls one tells the keeper as if it had it, then asks the source again whether that still
//     has the same value, and only then has it. A deletion that comes in between bars it, and
//     another moment at which it is over has it asked for again. A source that leaves the fleet
//     meanwhile is asked all the same, but who sets the key then does not know it any more:
//     therefore keepers, who are told everything anew when a host leaves, and until then are not
//     certain, are told of what is under way, too.
//   - Who says when one is over tells all holders, again until none changes. Who sets one if it is
//     absent claims it first (claim.go).
//
// A pull therefore either is known to the keeper when that is asked for the last time, or finds
// that its source has dropped the value. Where the keeper does not answer, has not been told
// everything yet, or names as many hosts as it remembers, every host is told. Two hosts on which
// one key is set in the same moment may both drop it: a miss, and never an old value.

// ErrKey says that a block with a client's own key is not handed to other hosts unasked.
var ErrKey = errors.New("fleet: only blocks of models are pushed")

// Delete removes a block from all hosts and tells whether any had it. With an error some host may
// still have it.
func (v *View) Delete(ctx context.Context, a block.Addr) (bool, error) {
	if err := v.unsure(&a); err != nil {
		return false, err
	}
	if v.alone() {
		if there, err := v.Store.Delete(ctx, a); err != nil || v.alone() {
			return there, err
		}
	}
	defer v.drops.begin()()
	n, err := v.drop(ctx, a, func() (bool, error) { return v.Store.Delete(ctx, a) })
	if err != nil {
		v.owe(a, err)
	}
	v.graves.bury(a) // somebody may have been counted out just now
	return n > 0, err
}

// Written is to be called with what the store's Options.Written is told. A client's own key that
// was set here is dropped by the other hosts before the client is answered. What comes from them is
// no news to them.
func (v *View) Written(ctx context.Context, it *store.Item) {
	if block.OfKeys(it.Namespace) {
		v.fresh.add(it.Addr, v.heard)
	}
	if !block.OfKeys(it.Namespace) || transport.RemoteOf(ctx).Role == pki.KVCached || ctx.Value(pulled{}) != nil {
		return
	}
	defer v.graves.bury(it.Addr) // somebody may be counted out meanwhile
	v.graves.bury(it.Addr)
	if v.alone() { // whoever comes from now on asks what is buried
		return
	}
	err := v.announceNow(ctx, it.Addr, nil)
	if ctx.Value(claimed{}) != nil {
		if err != nil {
			v.counts.dropsLost.Add(1)
			v.warn("absent", "another host may not see a key that was set here because it was absent", "error", err)
		}
		return
	}
	defer v.drops.begin()()
	if _, failed := v.drop(ctx, it.Addr, nil); failed != nil {
		v.counts.dropsLost.Add(1)
		for _, id := range v.owe(it.Addr, failed) {
			v.warn("lost "+id, "another host may go on to answer with an older value of a key that was set here, "+
				"until it answers again", "cache", id, "error", errors.Join(err, failed))
		}
	}
}

// Deleting is to be called with what the store's Options.Deleting is told, which other hosts'
// deletions are, too.
func (v *View) Deleting(a block.Addr) {
	v.doubts.disown(a)
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pulls[a]; p != nil {
		p.barred = true
	}
	if t := v.claims[a]; t != nil {
		t.barred = true
	}
	v.graves.bury(a)
}

// isBarred tells whether a pull must not be kept, and whether for good.
func (v *View) isBarred(p *pull) (barred, stale bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.barred, p.stale
}

// announceNow tells the keeper of an address, before it returns, how that is here, or what is
// claimed of it.
func (v *View) announceNow(ctx context.Context, a block.Addr, claim *wire.Change) error {
	m := v.roster.Load().keeper(&a)
	if m.ID == v.o.Self {
		if claim == nil {
			own := v.change(ctx, a)
			claim = &own
		}
		v.keepSome([]wire.Change{*claim})
		return nil
	}
	l := (*v.links.Load())[m.ID]
	if l == nil {
		return errDoubted
	}
	return v.watched(ctx, dropWithin, m, func(ctx context.Context, _ *health) error {
		if claim != nil {
			return l.claim(ctx, *claim)
		}
		l.add(a)
		return l.flush(ctx)
	})
}

// confirm sees to it that a key that was read from a host may be kept here.
func (v *View) confirm(ctx context.Context, from *source, a block.Addr, f *transport.Found) (err error) {
	// else the keeper is being told, and the source does not wait
	if m := v.roster.Load().member(from.ID); m != nil && *m == *from.Member {
		err = v.announceNow(ctx, a, &wire.Change{Addr: a, Tiers: uint32(store.RAM), Length: uint64(f.Length)})
	}
	var now [1]wire.Info
	if err == nil {
		err = v.watch(ctx, headWithin, from.health, func(ctx context.Context, _ *health) error {
			return from.peer.Stat(ctx, []block.Addr{a}, now[:])
		})
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // nobody waits for it
	case err != nil:
		v.warn("unsure "+from.ID, "a client's own key was read from another cache and is not kept: whether it is "+
			"still the same could not be asked",
			"cache", from.ID, "bytes", f.Length, "error", err)
	case now[0].Tiers == 0 || now[0].CRC != f.CRC:
		err = wire.Miss
	case now[0].Expires != f.Item.Expires:
		err = errStale
	}
	return err
}

// dropRounds is how often the keeper is asked who has a block; after that every host is told.
const dropRounds = 4

// drop has the other hosts delete a block, until there is none, and returns how many have done so.
// own, if not nil, deletes it here, which has to be done each time: a pull may have brought it back
// from a host that had it still.
func (v *View) drop(ctx context.Context, a block.Addr, own func() (bool, error)) (n int, err error) {
	for round := range dropRounds {
		found := 0
		if own != nil {
			there, err := own()
			if err != nil {
				return n, err
			}
			if there {
				found++
			}
		}
		hosts, known := v.holders(ctx, a)
		if !known || round == dropRounds-1 {
			hosts = v.everybody()
		}
		last := len(hosts) == 0
		if k := v.roster.Load().keeper(&a).ID; round == 0 && v.graves.any.Load() && k != v.o.Self &&
			!slices.Contains(hosts, k) {
			hosts = append(hosts, k) // to remember it for who is away
		}
		had, err := v.dropOn(ctx, a, hosts)
		found += had
		n += found
		if err != nil || round > 0 && found == 0 || last {
			return n, err
		}
	}
	return n, nil
}

// holders are the other hosts that the keeper knows to have a block; false: there may be more.
func (v *View) holders(ctx context.Context, a block.Addr) (hosts []string, known bool) {
	located, err := v.locate(ctx, []block.Addr{a})
	for _, h := range located[0].holders {
		hosts = append(hosts, h.host)
	}
	return hosts, err == nil && located[0].certain()
}

func (v *View) everybody() (hosts []string) {
	for _, m := range v.roster.Load().members {
		if m.ID != v.o.Self {
			hosts = append(hosts, m.ID)
		}
	}
	return hosts
}

// dropOn has some hosts delete a block, and tells how many had it. The error is a
// *store.HostsError.
func (v *View) dropOn(ctx context.Context, a block.Addr, hosts []string) (n int, err error) {
	var had atomic.Int64
	err = v.askEach(ctx, hosts, dropWithin, func(ctx context.Context, _ *Member, peer *transport.Peer) error {
		var there [1]bool
		err := peer.Delete(ctx, []block.Addr{a}, there[:])
		if there[0] {
			v.counts.dropped.Add(1)
			had.Add(1)
		}
		return err
	})
	return int(had.Load()), err
}
