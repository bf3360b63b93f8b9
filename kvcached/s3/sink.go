package s3

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// knower is a Sink that has to be told the text of a namespace before its blocks are asked for.
type knower interface{ Know(namespace string) }

// Sink stores objects: a store.Store, or a view of the fleet with the same methods.
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
