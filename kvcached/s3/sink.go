package s3

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// Sink stores objects.
type Sink interface {
	// Know tells the text of a namespace before its blocks are requested.
	Know(namespace string)
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	Stat(ctx context.Context, a block.Addr) (store.Info, error)
	// Describe is Stat with Key and Attr.
	Describe(ctx context.Context, a block.Addr) (store.Info, error)
	Delete(ctx context.Context, a block.Addr) (bool, error)
	Arena() *ram.Arena
	Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (next uint64, err error)
}
