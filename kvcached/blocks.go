package kvcached

import (
	"context"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/store"
)

// blocks is what servers of this host's clients use: the blocks of all hosts, or of this one if it
// is alone. Every access to a payload is recorded where the operator wants that.
type blocks struct {
	*store.Store
	view *fleet.View // nil: alone
	to   *recording  // nil: nothing is recorded
	door *door       // nil: nothing is timed
}

// blocks is what the server at a door uses.
func (d *Daemon) blocks(at string) blocks {
	return blocks{d.store, d.view.Load(), d.recorder, d.metrics.latency.doors[at]}
}

// Get is fleet.View.Get.
func (b blocks) Get(ctx context.Context, a block.Addr) (*store.Block, error) {
	if b.to == nil {
		return b.get(ctx, a)
	}
	got, err := b.get(ctx, a)
	length := 0
	if err == nil {
		length = got.Info().Length
	}
	b.to.Get(b.to.id(&a), int64(length))
	return got, err
}

func (b blocks) get(ctx context.Context, a block.Addr) (got *store.Block, err error) {
	began := time.Now()
	if b.view == nil {
		got, err = b.Store.Get(ctx, a)
	} else {
		got, err = b.view.Get(ctx, a)
	}
	if b.door != nil {
		b.door.got(began, err)
	}
	return got, err
}

// Stat is fleet.View.Stat.
func (b blocks) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	if b.view == nil {
		return b.Store.Stat(ctx, a)
	}
	return b.view.Stat(ctx, a)
}

// StatAll is fleet.View.StatAll.
func (b blocks) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	if b.view == nil {
		return b.Store.StatAll(ctx, addrs, out)
	}
	return b.view.StatAll(ctx, addrs, out)
}

// Describe is fleet.View.Describe.
func (b blocks) Describe(ctx context.Context, a block.Addr) (store.Info, error) {
	if b.view == nil {
		return b.Store.Describe(ctx, a)
	}
	return b.view.Describe(ctx, a)
}

// Delete is fleet.View.Delete.
func (b blocks) Delete(ctx context.Context, a block.Addr) (bool, error) {
	if b.view == nil {
		return b.Store.Delete(ctx, a)
	}
	return b.view.Delete(ctx, a)
}

// SetExpiry is fleet.View.SetExpiry.
func (b blocks) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error) {
	if b.view == nil {
		return b.Store.SetExpiry(ctx, a, unixMS)
	}
	return b.view.SetExpiry(ctx, a, unixMS)
}

// Know is fleet.View.Know.
func (b blocks) Know(namespace string) {
	if b.view != nil {
		b.view.Know(namespace)
	}
}

// keyed is blocks for clients that choose keys.
type keyed struct{ blocks }

// Reachable is fleet.View.Reachable; false: there is nobody to ask, so that each block may be asked
// for by itself.
func (k keyed) Reachable(ctx context.Context, addrs []block.Addr, out []bool) bool {
	return k.view != nil && k.view.Reachable(ctx, addrs, out) == nil
}

// PurgeSpaces removes all blocks of some namespaces, at most 62, from all hosts.
func (k keyed) PurgeSpaces(ctx context.Context, namespaces []string) error {
	if k.view == nil {
		_, err := k.Store.Purge(ctx, func(text string) bool { return slices.Contains(namespaces, text) })
		return err
	}
	done, err := k.view.PurgeAll(ctx, fleet.What{Namespaces: namespaces})
	if err != nil {
		return err
	}
	return unpurged(done)
}

// local is blocks whose lookups are about this host alone.
type local struct{ blocks }

// Stat is store.Store.Stat.
func (l local) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	return l.Store.Stat(ctx, a)
}

// StatAll is store.Store.StatAll.
func (l local) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	return l.Store.StatAll(ctx, addrs, out)
}

// Create is store.Store.Create.
func (b blocks) Create(ctx context.Context, it store.Item, length int) (*store.Draft, error) {
	if b.to != nil {
		b.to.Put(b.to.id(&it.Addr), int64(length))
	}
	began := time.Now()
	d, err := b.Store.Create(ctx, it, length)
	if err == nil && b.door != nil {
		d.Time(b.door.put, began)
	}
	return d, err
}
