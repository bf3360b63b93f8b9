package s3

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// knower is a Sink that has to be told the text of a namespace before its blocks are asked for.
type knower interface{ Know(namespace string) }

// Sink is where objects live: a store.Store, or a view of the fleet's with the same methods.
type Sink interface {
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	Stat(ctx context.Context, a block.Addr) (store.Info, error)
	// Describe is Stat with Key and Attr.
	Describe(ctx context.Context, a block.Addr) (store.Info, error)
	Delete(ctx context.Context, a block.Addr) (bool, error)
	Arena() *ram.Arena
	Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (next uint64, err error)
}

var _ Sink = (*store.Store)(nil)

// fleet is a Sink of which this host has a part. Absent calls commit, for a Commit with that
// context and Unless, if no host has the object; otherwise it is store.ErrExists.
// *store.HostsError, store.ErrUndecided: that could not be told.
type fleet interface {
	Absent(ctx context.Context, a block.Addr, commit func(ctx context.Context, unless func() bool) error) error
}

// commit makes an object visible.
func (c *call) commit(d *store.Draft, a block.Addr, o store.CommitOptions) (i store.Info, err error) {
	f, ok := c.s.sink.(fleet)
	if !ok || !o.IfAbsent {
		return d.Commit(c.r.Context(), o)
	}
	err = f.Absent(c.r.Context(), a, func(ctx context.Context, unless func() bool) (err error) {
		o.Unless = unless
		i, err = d.Commit(ctx, o)
		return err
	})
	return i, err
}
