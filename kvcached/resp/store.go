package resp

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// Store has the blocks that commands read and write.
type Store interface {
	// Know tells the text of a namespace before its blocks are requested.
	Know(namespace string)
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	Stat(ctx context.Context, a block.Addr) (store.Info, error)
	StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error
	Delete(ctx context.Context, a block.Addr) (bool, error)
	SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error)
	Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (next uint64, err error)
	Count(ctx context.Context) (map[string]int, error)
	// Reachable asks all hosts once which blocks they may have. It returns false if it cannot ask.
	Reachable(ctx context.Context, addrs []block.Addr, out []bool) bool
}
