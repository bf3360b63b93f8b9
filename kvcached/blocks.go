package kvcached

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/resp"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/s3"
	"github.com/cognitora/dataplane/kvcached/store"
)

// Interfaces of the servers.
var (
	_ resp.Store  = keyed{}
	_ s3.Sink     = keyed{}
	_ rpc.Store   = local{}
	_ lease.Store = local{}
)

// blocks is the store for servers of this host's clients. blocks covers all hosts, or only this one
// if there is no fleet. Each access to a payload is recorded if kvcached.trace is set.
type blocks struct {
	here *store.Store
	view *fleet.View // nil: there is no fleet
	to   *recording  // nil: nothing is recorded
	door *door       // nil: accesses are not timed
}

// blocks returns the store for the server at a door.
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
		got, err = b.here.Get(ctx, a)
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
		return b.here.Stat(ctx, a)
	}
	return b.view.Stat(ctx, a)
}

// StatAll is fleet.View.StatAll.
func (b blocks) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	if b.view == nil {
		return b.here.StatAll(ctx, addrs, out)
	}
	return b.view.StatAll(ctx, addrs, out)
}

// Describe is fleet.View.Describe.
func (b blocks) Describe(ctx context.Context, a block.Addr) (store.Info, error) {
	if b.view == nil {
		return b.here.Describe(ctx, a)
	}
	return b.view.Describe(ctx, a)
}

// Delete is fleet.View.Delete.
func (b blocks) Delete(ctx context.Context, a block.Addr) (bool, error) {
	if b.view == nil {
		return b.here.Delete(ctx, a)
	}
	return b.view.Delete(ctx, a)
}

// SetExpiry is fleet.View.SetExpiry.
func (b blocks) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error) {
	if b.view == nil {
		return b.here.SetExpiry(ctx, a, unixMS)
	}
	return b.view.SetExpiry(ctx, a, unixMS)
}

// Know is fleet.View.Know.
func (b blocks) Know(namespace string) {
	if b.view != nil {
		b.view.Know(namespace)
	}
}

// Touch is store.Store.Touch.
func (b blocks) Touch(addrs []block.Addr) { b.here.Touch(addrs) }

// Pin is store.Store.Pin.
func (b blocks) Pin(ctx context.Context, a block.Addr, owner string, until int64) error {
	return b.here.Pin(ctx, a, owner, until)
}

// Unpin is store.Store.Unpin.
func (b blocks) Unpin(a block.Addr, owner string) { b.here.Unpin(a, owner) }

// Scan is store.Store.Scan.
func (b blocks) Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (uint64, error) {
	return b.here.Scan(ctx, cursor, visit)
}

// Count is store.Store.Count.
func (b blocks) Count(ctx context.Context) (map[string]int, error) { return b.here.Count(ctx) }

// Stats is store.Store.Stats.
func (b blocks) Stats() store.Stats { return b.here.Stats() }

// Namespaces is store.Store.Namespaces.
func (b blocks) Namespaces() []store.NamespaceUsage { return b.here.Namespaces() }

// Arena is store.Store.Arena.
func (b blocks) Arena() *ram.Arena { return b.here.Arena() }

// keyed is the store for clients that choose keys.
type keyed struct{ blocks }

// Reachable is fleet.View.Reachable. Reachable returns false if it could not ask other hosts. The
// caller must then get each block.
func (k keyed) Reachable(ctx context.Context, addrs []block.Addr, out []bool) bool {
	return k.view != nil && k.view.Reachable(ctx, addrs, out) == nil
}

// Warm is store.Store.Warm.
func (b blocks) Warm(ctx context.Context, a block.Addr) error { return b.here.Warm(ctx, a) }

// local is the store whose Stat and StatAll cover only this host.
type local struct{ blocks }

// Stat is store.Store.Stat.
func (l local) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	return l.here.Stat(ctx, a)
}

// StatAll is store.Store.StatAll.
func (l local) StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	return l.here.StatAll(ctx, addrs, out)
}

// Create is store.Store.Create.
func (b blocks) Create(ctx context.Context, it store.Item, length int) (*store.Draft, error) {
	if b.to != nil {
		b.to.Put(b.to.id(&it.Addr), int64(length))
	}
	began := time.Now()
	d, err := b.here.Create(ctx, it, length)
	if err == nil && b.door != nil {
		d.Time(b.door.put, began)
	}
	return d, err
}
