package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A key that is to be set only if it is absent is claimed at its keeper first, which grants one
// claim of a key at a time and names who has it as a holder, so that whoever sets or deletes the
// key meanwhile bars it. Under the claim all holders are asked.
//
// The keeper grants nothing until claimFor after its start, and until every member has told it
// everything, as a member of the same hosts as the keeper knows. Who has a claim commits within
// claimFor of asking for it, or not at all, and only while the members stay the same. So of two
// that set one key at the same time one is told that it is there, whatever restarts meanwhile. That
// does not hold for a host that etcd has counted out and that does not know it yet: what it sets is
// its own until it is back.

// Bounds of claims.
const (
	claimFor    = 2 * time.Second // how long one counts
	claimWithin = 5 * time.Second // how long one is tried for; then ErrUndecided
	claimRetry  = 10 * time.Millisecond
	maxClaims   = 1 << 16 // at one keeper; one more has to wait
)

// What a keeper says to a claim.
const (
	granted = iota
	taken
	notYet
)

// ErrUndecided says that a key was not set because it could not be told in time whether it is
// there. store.ErrUndecided.
var ErrUndecided = store.ErrUndecided

// turn is a claim of this host.
type turn struct {
	v      *View
	addr   block.Addr
	r      *roster
	keeper *Member
	until  time.Time
	barred bool // guarded by View.mu: the key was set or deleted elsewhere
}

// lost tells whether the key must not be set any more.
func (t *turn) lost() bool {
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	return t.barred || t.v.roster.Load() != t.r || time.Now().After(t.until)
}

// claimed marks the context of a Commit under a claim: nobody has to drop anything.
type claimed struct{}

// Absent calls commit, with the context and the Unless that the Commit has to have, if no host has
// a client's key. Otherwise it is store.ErrExists. *store.HostsError: a host that may have it, or
// the keeper, could not be asked. ErrUndecided: the members have changed just now, or others went
// on to set the key. Blocks of tokens have equal bytes wherever they are: of these only this host
// is asked where it knows their namespace.
func (v *View) Absent(ctx context.Context, a block.Addr,
	commit func(ctx context.Context, unless func() bool) error) error {
	if err := v.unsure(&a); err != nil {
		return err
	}
	if v.alone() || !v.mayBeKey(&a) {
		return commit(ctx, nil)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, claimWithin, ErrUndecided)
	defer cancel()
	t, err := v.claim(ctx, a)
	if err != nil {
		return err
	}
	defer v.unclaim(ctx, t)
	if there, err := v.exists(ctx, a); err != nil || there {
		if err == nil {
			err = store.ErrExists
		}
		return err
	}
	err = commit(context.WithValue(ctx, claimed{}, true), t.lost)
	if !errors.Is(err, store.ErrMiss) {
		return err
	}
	if there, _ := v.exists(ctx, a); there {
		return store.ErrExists
	}
	return ErrUndecided
}

func (v *View) exists(ctx context.Context, a block.Addr) (bool, error) {
	var out [1]store.Info
	err := v.Find(ctx, []block.Addr{a}, out[:])
	return out[0].Tiers != 0, err
}

// claim waits until the keeper grants it.
func (v *View) claim(ctx context.Context, a block.Addr) (*turn, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		timer.Reset(claimRetry)
		r := v.roster.Load()
		t := &turn{v: v, addr: a, r: r, keeper: r.keeper(&a), until: time.Now().Add(claimFor)}
		if !v.enter(t) {
			continue
		}
		says, err := v.askClaim(ctx, t, 1)
		if err == nil && says == granted {
			return t, nil
		}
		v.exit(t)
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &store.HostsError{Hosts: []string{t.keeper.ID}, Until: time.Now().Add(v.o.Lease), Err: err}
		}
	}
}

// enter notes a claim, of which there is one of a key on this host.
func (v *View) enter(t *turn) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.claims[t.addr] != nil {
		return false
	}
	v.claims[t.addr] = t
	return true
}

func (v *View) exit(t *turn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.claims, t.addr)
}

// unclaim ends a claim. If the keeper is not reached it ends by itself.
func (v *View) unclaim(ctx context.Context, t *turn) {
	_, _ = v.askClaim(context.WithoutCancel(ctx), t, 2)
	v.exit(t)
}

func (v *View) askClaim(ctx context.Context, t *turn, step int64) (says uint64, err error) {
	o := &wire.Order{Host: v.o.Self, Number: t.r.digest, Moment: step, Addrs: []block.Addr{t.addr}}
	if t.keeper.ID == v.o.Self {
		return v.keeper.claim(o), nil
	}
	err = v.within(ctx, dropWithin, t.keeper, func(ctx context.Context, peer *transport.Peer) error {
		r, err := peer.Order(ctx, wire.Claim, o)
		if err == nil {
			says = r.Number
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("fleet: a claim at %s: %w", t.keeper.ID, err)
	}
	return says, err
}

// held is a claim at the keeper.
type held struct {
	host  string
	until time.Time
}

// claim grants or ends a claim.
func (k *keeper) claim(o *wire.Order) uint64 {
	key, now := keyOf(&o.Addrs[0]), time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	h, there := k.claims[key]
	if o.Moment != 1 {
		if there && h.host == o.Host {
			delete(k.claims, key)
		}
		return granted
	}
	switch {
	case k.roster == nil || o.Number != k.roster.digest || !k.complete || now.Before(k.began.Add(claimFor)):
		return notYet
	case there && h.host != o.Host && now.Before(h.until):
		return taken
	case !there && len(k.claims) >= maxClaims:
		for other, h := range k.claims {
			if now.After(h.until) {
				delete(k.claims, other)
			}
		}
		if len(k.claims) >= maxClaims {
			return notYet
		}
	}
	k.claims[key] = held{o.Host, now.Add(claimFor)}
	return granted
}
