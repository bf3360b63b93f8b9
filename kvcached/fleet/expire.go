package fleet

import (
	"context"
	"errors"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// What an Expire says of an address.
const (
	notThere = iota
	changed
	wasSo
)

// SetExpiry says on all hosts that have a block when it is over, in Unix ms; 0: never. False: there
// is no such block. With an error some host may go on with the old time. Set on two hosts in one
// moment, each copy has one of the two times.
func (v *View) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (there bool, err error) {
	if err := v.unsure(&a); err != nil {
		return false, err
	}
	defer func() {
		if there {
			v.graves.bury(a) // who is away has it with the old time
		}
	}()
	if v.alone() {
		if there, err = v.Store.SetExpiry(ctx, a, unixMS); err != nil || v.alone() {
			return there, err
		}
	}
	for round := range dropRounds {
		mark, err := v.expireHere(ctx, a, unixMS)
		if err != nil {
			return there, err
		}
		hosts, known := v.holders(ctx, a)
		if !known || round == dropRounds-1 {
			hosts = v.everybody()
		}
		marks, err := v.expireOn(ctx, a, unixMS, hosts)
		there = there || mark != notThere || marks[changed]+marks[wasSo] > 0
		if err != nil || len(hosts) == 0 || round > 0 && mark != changed && marks[changed] == 0 {
			return there, err
		}
	}
	return there, nil
}

// expireOn has some hosts change when a block is over, and counts what they say.
func (v *View) expireOn(ctx context.Context, a block.Addr, unixMS int64, hosts []string) (marks [3]int, err error) {
	var mu sync.Mutex
	err = v.askEach(ctx, hosts, dropWithin, func(ctx context.Context, _ *Member, peer *transport.Peer) error {
		r, err := peer.Order(ctx, wire.Expire, &wire.Order{Moment: unixMS, Addrs: []block.Addr{a}})
		if err != nil {
			return err
		}
		if len(r.Marks) != 1 || int(r.Marks[0]) >= len(marks) {
			return wire.BadFrame
		}
		mu.Lock()
		defer mu.Unlock()
		marks[r.Marks[0]]++
		return nil
	})
	return marks, err
}

// expireHere changes when a block is over on this host. One that is on its way here has to be asked
// for again.
func (v *View) expireHere(ctx context.Context, a block.Addr, unixMS int64) (mark byte, err error) {
	v.mu.Lock()
	if p := v.pulls[a]; p != nil {
		p.stale = true
	}
	v.mu.Unlock()
	i, err := v.Store.Stat(ctx, a)
	switch {
	case errors.Is(err, store.ErrMiss):
		return notThere, nil
	case err != nil:
		return notThere, err
	case i.Item.Expires == unixMS:
		return wasSo, nil
	}
	there, err := v.Store.SetExpiry(ctx, a, unixMS)
	if !there {
		return notThere, err
	}
	v.graves.bury(a)
	return changed, err
}
