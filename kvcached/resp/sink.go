package resp

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// knower is a Store that has to be told the text of a namespace before its blocks are asked for.
type knower interface{ Know(namespace string) }

// Store is what commands read and write: a store.Store, or what wraps one with the same methods.
type Store interface {
	Get(ctx context.Context, a block.Addr) (*store.Block, error)
	Create(ctx context.Context, it store.Item, length int) (*store.Draft, error)
	Stat(ctx context.Context, a block.Addr) (store.Info, error)
	StatAll(ctx context.Context, addrs []block.Addr, out []store.Info) error
	Delete(ctx context.Context, a block.Addr) (bool, error)
	SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error)
	Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (next uint64, err error)
	Count(ctx context.Context) (map[string]int, error)
}

// fleet is a Store with the blocks of several hosts.
type fleet interface {
	// Reachable asks once which blocks any host may have. It is false if it cannot tell.
	Reachable(ctx context.Context, addrs []block.Addr, out []bool) bool
}
